//! Tap interfaces.

use std::os::fd::OwnedFd;

use dataplane::attach::buffered::tap::TapConfig;
use dataplane::config::Attachment;
use host::tap::privileged;
use jail::strangers::Descriptor;
use rustix::event::{PollFd, PollFlags, Timespec};
use topology::Tap;

use super::super::front_ends::Waiting;
use super::super::interfaces;
use super::super::interfaces::tun::{make_tap, set_link_mtu};
use super::super::namespace::in_namespace;
use super::super::objects::Namespace;
use super::{Following, Future, Open, Opened, Opening, Reach};
use crate::api::{ApiError, ErrorCode};

const _: () = assert!(Tap::MAX_QUEUES as usize == dataplane::attach::buffered::tap::MAX_QUEUES);

impl Open for Tap {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it makes a network interface")
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let Self { ifname, netns, queues } = self.clone();
        Box::pin(async move {
            let (uso, fds) = open_tap(ifname, netns, queues, at.mtu).await?;
            Ok(Opened::ours(TapConfig { uso }.into(), fds))
        })
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let Self { ifname, netns, .. } = self.clone();
        Box::pin(in_namespace(netns, move || {
            let tun = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
            tun.map_err(|e| privileged(&format!("Cannot make tap interface {ifname}"), e))?;
            match interfaces::is_no_tap(&ifname) {
                false => Ok(()),
                true => Err(ApiError::new(
                    ErrorCode::Busy,
                    format!("Interface {ifname} is there already, and is no tap"),
                    "use another name",
                )),
            }
        }))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Tap(_))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        let namespace = Namespace::of(self.netns.as_deref(), fds);
        Ok(Some(Waiting::watch(name, notices, move || namespace.gone())))
    }

    fn lost(&self, fds: &[Descriptor]) -> Option<String> {
        let queue = fds.first()?;
        let mut asked = [PollFd::new(queue, PollFlags::empty())];
        // A tap whose interface was removed has an error, and nothing else.
        rustix::event::poll(&mut asked, Some(&Timespec::default())).ok()?;
        let gone = asked[0].revents().contains(PollFlags::ERR);
        gone.then(|| format!("tap interface {} is gone", self.ifname))
    }

    fn set_mtu(&self, mtu: u16, _: &Attachment) -> Future<'_, ()> {
        let Self { ifname, netns, .. } = self.clone();
        Box::pin(in_namespace(netns, move || set_link_mtu(&ifname, mtu)))
    }
}

/// Makes the interface in its namespace, sets its MTU and brings it up. Returns whether it accepts
/// UDP segmentation offload, and its queues.
async fn open_tap(
    ifname: String,
    netns: Option<String>,
    queues: u16,
    mtu: u16,
) -> Result<(bool, Vec<OwnedFd>), ApiError> {
    in_namespace(netns, move || {
        let mut told = Ok(());
        let made = make_tap(&ifname, queues, |ifname| told = set_link_mtu(ifname, mtu))?;
        told.map(|()| made)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_namespace_that_does_not_exist_is_named() {
        let tap = |netns: &str| Tap { netns: Some(netns.into()), ..Tap::called("tap-toklat") };
        let missing = tap("no-such-namespace").open(Opening::of_test()).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{missing}");
        let path = tap("../self").open(Opening::of_test()).await.unwrap_err();
        assert_eq!(path.code, ErrorCode::BadRequest, "{path}");
    }
}
