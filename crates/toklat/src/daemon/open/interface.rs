//! Network interfaces of the host.

use dataplane::config::{Attachment, Engine, Policy};
use jail::strangers::Descriptor;
use topology::{Interface, InterfaceEngine};

use super::super::front_ends::Waiting;
use super::super::interfaces;
use super::super::interfaces::tun::set_link_mtu;
use super::super::interfaces::watch;
use super::super::log::ACTION;
use super::super::namespace::in_namespace;
use super::super::objects::Namespace;
use super::super::system;
use super::{Following, Future, Open, Opened, Opening, Reach};
use crate::api::{ApiError, ErrorCode};

const _: () = assert!(Interface::MAX_QUEUES as usize == dataplane::attach::interface::MAX_QUEUES);

impl Open for Interface {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it takes a network interface")
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let settings = self.clone();
        let mtu = at.mtu;
        Box::pin(async move {
            let netns = settings.netns.clone();
            let open = move || {
                if settings.engine == InterfaceEngine::Xdp && !interfaces::fits_xdp(mtu) {
                    return Err(does_not_fit(&settings.ifname, mtu));
                }
                if let Err(error) = raise_mtu(&settings.ifname, mtu) {
                    tracing::warn!(target: ACTION, ifname = settings.ifname, mtu, %error, "MTU was not raised");
                }
                interfaces::open(&settings)
            };
            let (config, fds) = in_namespace(netns, open).await?;
            Ok(Opened::ours(Attachment::Interface(config), fds))
        })
    }

    fn probe(&self, mtu: u16) -> Future<'_, ()> {
        let Self { ifname, netns, engine, .. } = self.clone();
        Box::pin(in_namespace(netns, move || {
            if engine == InterfaceEngine::Xdp && !interfaces::fits_xdp(mtu) {
                return Err(does_not_fit(&ifname, mtu));
            }
            interfaces::mtu(&ifname).map(drop)
        }))
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

    fn set_mtu(&self, mtu: u16, attachment: &Attachment) -> Future<'_, ()> {
        let fits = match attachment {
            Attachment::Interface(config) => interfaces::fits(&config.engine, mtu),
            _ => true,
        };
        let Self { ifname, netns, .. } = self.clone();
        Box::pin(in_namespace(netns, move || match fits {
            true => match raise_mtu(&ifname, mtu) {
                // The interface's MTU is raised when it is there again.
                Err(error) if error.code == ErrorCode::NotFound => Ok(()),
                raised => raised,
            },
            false => Err(does_not_fit(&ifname, mtu)),
        }))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { attachment, fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        let opened = match attachment {
            Attachment::Interface(config) => {
                Some(watch::Opened { index: config.index, tap: None, filters: false })
            }
            _ => None,
        };
        let netns = self.netns.as_deref();
        let namespace = Namespace::of(netns, fds);
        let watching =
            watch::watch(name, (&self.ifname, netns), (opened, namespace), notices.clone());
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

/// Raises the MTU of an interface of this thread's namespace to `mtu`, if that is above a port's
/// usual one: an interface may have a smaller one for a reason. It is never lowered: others may use
/// the interface.
fn raise_mtu(ifname: &str, mtu: u16) -> Result<(), ApiError> {
    match mtu <= Policy::MTU || interfaces::mtu(ifname)? >= u32::from(mtu) {
        true => Ok(()),
        false => set_link_mtu(ifname, mtu),
    }
}

fn does_not_fit(ifname: &str, mtu: u16) -> ApiError {
    let reason = format!("AF_XDP's memory for {ifname} has no room for packets of {mtu} bytes");
    let remedy =
        "remove the port and add it with this --mtu (at most 3818), or with --engine packet";
    ApiError::new(ErrorCode::BadRequest, reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interface_that_does_not_exist_is_named() {
        let missing = Interface::called("none-of-ours").open(Opening::of_test()).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{missing}");
        assert!(missing.reason.contains("none-of-ours"), "{missing}");
    }
}
