//! The host's network stack behind an interface.

use dataplane::config::Attachment;
use jail::strangers::Descriptor;
use topology::Host;

use super::super::front_ends::Waiting;
use super::super::interfaces::{self, host, watch};
use super::super::namespace::in_namespace;
use super::super::objects::Namespace;
use super::super::system;
use super::{Following, Future, Open, Opened, Opening, Reach};
use crate::api::ApiError;

impl Open for Host {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it takes the network interface of the host's own stack")
    }

    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        open(self.clone())
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let Self { ifname, netns } = self.clone();
        Box::pin(in_namespace(netns, move || interfaces::mtu(&ifname).map(drop)))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        let Attachment::Host(opened) = attachment else { return false };
        (&self.ifname, &self.netns) == (&opened.ifname, &opened.netns)
    }

    fn follow(
        &self,
        name: (String, String),
        Following { attachment, fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        let opened = match attachment {
            Attachment::Host(config) => Some(watch::Opened {
                index: config.index,
                tap: Some((config.tap.clone(), config.tap_index)),
                filters: config.clsact,
            }),
            _ => None,
        };
        let netns = self.netns.as_deref();
        let namespace = Namespace::of(netns, fds);
        let watching =
            watch::watch(name, (&self.ifname, netns), (opened, namespace), notices.clone());
        let failed = |e| system(&format!("Cannot watch interface {}", self.ifname), e);
        watching.map(Some).map_err(failed)
    }

    fn takes_from_host(&self) -> bool {
        true
    }

    fn renew(&self, _: Attachment, _: Vec<Descriptor>) -> Future<'_, Opened> {
        open(self.clone())
    }
}

fn open(settings: Host) -> Future<'static, Opened> {
    Box::pin(async move {
        let netns = settings.netns.clone();
        let (config, fds) = in_namespace(netns, move || host::open(&settings)).await?;
        Ok(Opened::ours(Attachment::Host(config), fds))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorCode;

    #[tokio::test]
    async fn an_interface_that_does_not_exist_is_named() {
        let missing = open(Host::behind("none-of-ours")).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{missing}");
        assert!(missing.reason.contains("none-of-ours"), "{missing}");
    }
}
