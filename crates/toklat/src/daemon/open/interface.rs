//! Network interfaces of the host.

use dataplane::config::{Attachment, InterfaceConfig};
use topology::Interface;

use super::super::interfaces;
use super::super::namespace::in_namespace;
use super::{Future, Open, Opened, Opening};

const _: () = assert!(Interface::MAX_QUEUES as usize == dataplane::attach::interface::MAX_QUEUES);

impl Open for Interface {
    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        let Self { ifname, netns, queues } = self.clone();
        Box::pin(async move {
            let name = ifname.clone();
            let opened = move || interfaces::open(&name, queues);
            let (index, engine, fds) = in_namespace(netns.clone(), opened).await?;
            let config = InterfaceConfig { ifname, netns, index, engine };
            Ok(Opened::ours(Attachment::Interface(config), fds))
        })
    }

    fn is(&self, attachment: &Attachment) -> bool {
        let Attachment::Interface(opened) = attachment else { return false };
        (&self.ifname, &self.netns) == (&opened.ifname, &opened.netns)
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
