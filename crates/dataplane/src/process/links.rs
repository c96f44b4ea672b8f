//! Links of ports: the files that they name, and their counters.

use std::sync::Arc;

use jail::strangers::Descriptor;
use shmem::Memfd;

use super::Process;
use crate::config::PortId;
use crate::control::Answer;

/// Files that links may name, at most.
const MAX_FILES: usize = 64;

impl Process {
    /// Takes the content of a file, in place of an earlier one.
    pub(super) fn take_link_file(
        &mut self,
        name: String,
        descriptors: Vec<Descriptor>,
    ) -> Result<Answer, String> {
        let [file] = <[Descriptor; 1]>::try_from(descriptors)
            .map_err(|_| "Expected a memory file with the content of a link's file".to_owned())?;
        if self.files.len() == MAX_FILES && !self.files.contains_key(&name) {
            // Those that no port names go first.
            let used = |file: &String| {
                let mut policies = self.ports.iter().flatten().map(|port| &port.config.policy);
                policies.any(|policy| {
                    [&policy.tx_link, &policy.rx_link]
                        .into_iter()
                        .flatten()
                        .any(|link| link.contains(file.as_str()))
                })
            };
            let kept = self.files.iter().filter(|(file, _)| used(file));
            self.files = kept.map(|(file, text)| (file.clone(), Arc::clone(text))).collect();
        }
        if self.files.len() == MAX_FILES {
            return Err(format!("Links name at most {MAX_FILES} files"));
        }
        let file = Memfd::adopt(file.into_ours()).map_err(|error| error.to_string())?;
        let mapping = file.map().map_err(|error| error.to_string())?;
        let bytes = mapping.bytes(0, mapping.len()).map(|bytes| bytes.to_vec());
        let text = String::from_utf8(bytes.unwrap_or_default());
        let text = text.map_err(|_| format!("{name} is not a text"))?;
        self.files.insert(name, Arc::from(text.trim_end_matches('\0')));
        Ok(Answer::Done)
    }

    /// The counters of a port's links.
    pub(super) fn link_stats(&mut self, id: PortId) -> Result<Answer, String> {
        let [sends, receives] = self.record(id)?.links.stats();
        Ok(Answer::Links { sends: sends.map(Box::new), receives: receives.map(Box::new) })
    }
}
