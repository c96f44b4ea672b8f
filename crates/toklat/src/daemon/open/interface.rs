//! Network interfaces of the host.

use dataplane::config::{Attachment, Engine};
use jail::strangers::Descriptor;
use tokio::sync::mpsc;
use topology::{Interface, InterfaceEngine};

use super::super::front_ends::Waiting;
use super::super::interfaces;
use super::super::interfaces::watch;
use super::super::interfaces::watched::Returned;
use super::super::namespace::in_namespace;
use super::super::system;
use super::{Future, Open, Opened, Opening};
use crate::api::ApiError;

const _: () = assert!(Interface::MAX_QUEUES as usize == dataplane::attach::interface::MAX_QUEUES);

impl Open for Interface {
    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        let settings = self.clone();
        Box::pin(async move {
            let netns = settings.netns.clone();
            let (config, fds) = in_namespace(netns, move || interfaces::open(&settings)).await?;
            Ok(Opened::ours(Attachment::Interface(config), fds))
        })
    }

    fn is(&self, attachment: &Attachment) -> bool {
        let Attachment::Interface(opened) = attachment else { return false };
        let packets = matches!(opened.engine, Engine::Packet(_));
        (&self.ifname, &self.netns) == (&opened.ifname, &opened.netns)
            && match self.engine {
                InterfaceEngine::Auto => !packets || self.queues == opened.queues,
                InterfaceEngine::Xdp => !packets,
                InterfaceEngine::Packet => packets && self.queues == opened.queues,
            }
    }

    fn follow(
        &self,
        name: (String, String),
        (attachment, _): (&Attachment, &[Descriptor]),
        returned: &mpsc::Sender<Returned>,
    ) -> Result<Option<Waiting>, ApiError> {
        let opened = match attachment {
            Attachment::Interface(config) => Some(config.index),
            _ => None,
        };
        let interface = (&*self.ifname, self.netns.as_deref());
        let watching = watch::watch(name, interface, opened, returned.clone());
        let failed = |e| system(&format!("Cannot watch interface {}", self.ifname), e);
        watching.map(Some).map_err(failed)
    }

    fn serves_one_process(&self, attachment: &Attachment) -> bool {
        let Attachment::Interface(config) = attachment else { return false };
        matches!(config.engine, Engine::Xdp(_))
    }

    fn renew(&self, attachment: Attachment, mut fds: Vec<Descriptor>) -> Future<'_, Opened> {
        Box::pin(async move {
            let Attachment::Interface(config) = attachment else {
                return Ok(Opened { attachment, fds, tunnel: None });
            };
            // The old sockets are closed before new ones take their queues.
            let sockets = 2 * usize::from(config.queues);
            let kept = fds.split_off(sockets.min(fds.len()));
            let kept = kept.into_iter().map(Descriptor::into_ours).collect();
            fds.into_iter().for_each(|fd| drop(fd.into_ours()));
            let renewed = move || interfaces::open_again(&config, kept);
            let (config, fds) = in_namespace(self.netns.clone(), renewed).await?;
            Ok(Opened::ours(Attachment::Interface(config), fds))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorCode;

    #[tokio::test]
    async fn an_interface_that_does_not_exist_is_named() {
        let missing = Interface::called("none-of-ours").open(Opening::of_test()).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{missing}");
        assert!(missing.reason.contains("none-of-ours"), "{missing}");
    }
}
