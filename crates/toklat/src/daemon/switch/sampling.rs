//! A switch's samples for an sFlow collector.

use std::time::Instant;

use super::super::sflow::{Export, Interface, Settings};
use super::Switch;
use crate::api::{ApiError, ErrorCode, PortState};

impl Switch {
    /// Starts sampling with these settings.
    ///
    /// # Errors
    /// Too many switches are sampled.
    pub fn set_sampling(&mut self, settings: Option<Settings>) -> Result<(), ApiError> {
        if self.sampling.as_ref().map(Export::settings) == settings {
            return Ok(());
        }
        // Dropping the export frees its number for the next switch.
        self.sampling = None;
        let Some(settings) = settings else { return Ok(()) };
        let begun = Export::begin(settings, &self.name, &self.view, &self.environment.agents);
        let export = begun.map_err(|error| {
            ApiError::new(ErrorCode::Limit, error.to_string(), "sample fewer: --sflow none")
        })?;
        self.sampling = Some(export);
        Ok(())
    }

    /// Requests samples of a new data process.
    pub(super) fn renew_sampling(&mut self) {
        if let Some(sampling) = &mut self.sampling {
            sampling.renew(&self.view);
        }
    }

    /// Sends new samples; returns false if the switch is not sampled.
    pub fn send_samples(&mut self) -> bool {
        let Some(mut sampling) = self.sampling.take() else { return false };
        sampling.send(Instant::now(), || {
            let interface = |port: &super::Port| {
                let up = matches!(self.state_of(port), PortState::Attached | PortState::Stalled);
                Interface { id: port.id, name: format!("{}:{}", self.name, port.name), up }
            };
            self.ports().map(interface).collect()
        });
        self.sampling = Some(sampling);
        true
    }
}
