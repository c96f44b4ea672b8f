//! A switch's samples for an sFlow collector, and its records of drops.

use std::fmt::Write;
use std::time::Instant;

use fabric::{Fate, Observer, Recorded};

use super::super::sflow::{Export, Interface, Settings};
use super::super::supervisor::monotonic_ns;
use super::Switch;
use crate::api::{ApiError, Dropped, DroppedFrame, ErrorCode, PortState};

/// Seconds for which drops are recorded after a request.
const RECORDED_S: u32 = 5;

impl Switch {
    /// Starts sampling with these settings.
    ///
    /// # Errors
    /// Too many switches are sampled.
    pub fn set_sampling(&mut self, settings: Option<Settings>) -> Result<(), ApiError> {
        if self.sampling.as_ref().map(Export::settings) == settings {
            return Ok(());
        }
        // Frees its number for the next switch.
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

    /// The frames dropped since a position, or from this call on. Extends the recording of drops by
    /// some seconds.
    #[must_use]
    pub fn dropped(&self, since: Option<u64>) -> Dropped {
        let (recorder, now) = (self.view.recorder(), port::Nanos(monotonic_ns()));
        recorder.record_drops(now, RECORDED_S);
        let mut observer = match since {
            Some(place) => Observer::resume(recorder.clone(), Recorded::Drops, place),
            None => Observer::new(recorder.clone(), Recorded::Drops),
        };
        let mut frames = Vec::new();
        observer.read(|record| {
            let Fate::Dropped(reason, by) = record.fate else { return };
            let head = record.head().iter().fold(String::new(), |mut head, byte| {
                // Writing to a string does not fail.
                let _ = write!(head, "{byte:02x}");
                head
            });
            frames.push(DroppedFrame {
                at_ns: record.at.0,
                from: self.name_of(record.from),
                by: by.map(|port| self.name_of(port)),
                reason: reason.name().into(),
                len: record.len,
                head,
            });
        });
        Dropped { next: observer.place(), missed: observer.missed, now_ns: now.0, frames }
    }
}
