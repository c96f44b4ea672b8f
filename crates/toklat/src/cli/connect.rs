//! How a virtual machine is put at a port: the socket, and what QEMU's command line needs.

use std::path::{Path, PathBuf};

use client::name::PortName;
use topology::{PortKind, PortSpec, Stream, VfioUser, VhostUser};

/// The lines after `added vale0:vm1`; `None` for ports without a socket of a virtual machine.
#[must_use]
pub fn lines(name: &PortName, spec: &PortSpec, dir: &Path) -> Option<String> {
    let default = || dir.join(format!("{}-{}.sock", name.switch, name.port));
    let at = |path: &Option<String>| path.as_ref().map_or_else(default, PathBuf::from);
    let mac = spec.policy.macs.first();
    let mac = mac.map_or_else(String::new, |mac| format!(",mac={mac}"));
    let (socket, qemu) = match &spec.kind {
        PortKind::VhostUser(VhostUser { path, client, queues: _ }) => {
            let socket = at(path);
            (socket.clone(), vhost_user(name, &socket, *client, &mac))
        }
        PortKind::VfioUser(VfioUser { path, .. }) => {
            let socket = at(path);
            let shown = serde_json::json!({ "type": "unix", "path": socket });
            let device = format!(
                "{MEMORY} \\\n  -device '{{\"driver\":\"vfio-user-pci\",\"socket\":{shown}}}'"
            );
            (socket, device)
        }
        // At an address, or where the port connects, the other side is the user's own.
        PortKind::Stream(Stream { address, client: false })
            if address.as_ref().is_none_or(|address| address.starts_with('/')) =>
        {
            let socket = at(address);
            let id = &name.port;
            let netdev = format!(
                "  -netdev stream,id={id},server=off,addr.type=unix,addr.path={} \\\n  \
                 -device virtio-net-pci,netdev={id}{mac}",
                word(&socket)
            );
            (socket, netdev)
        }
        _ => return None,
    };
    let socket = socket.display();
    Some(format!("its socket is {socket}; QEMU takes\n{qemu}"))
}

/// Memory that another process can map.
const MEMORY: &str = "  -object memory-backend-memfd,id=mem,size=2G,share=on -m 2G \\\n  \
                      -machine q35,memory-backend=mem";

fn vhost_user(name: &PortName, socket: &Path, connects: bool, mac: &str) -> String {
    let id = &name.port;
    let how = if connects { "server=on,wait=off" } else { "reconnect=1" };
    format!(
        "{MEMORY} \\\n  \
         -chardev socket,id={id},path={},{how} \\\n  \
         -netdev vhost-user,id=net-{id},chardev={id} \\\n  \
         -device virtio-net-pci,netdev=net-{id}{mac}",
        word(socket)
    )
}

/// A path in an option of QEMU, for a shell: a comma is written twice.
fn word(path: &Path) -> String {
    let text = path.display().to_string().replace(',', ",,");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.,:=+@%".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, kind: &serde_json::Value) -> Option<String> {
        let spec = serde_json::json!({ "kind": kind, "macs": ["52:54:00:00:00:01"] });
        lines(&name.parse().unwrap(), &serde_json::from_value(spec).unwrap(), Path::new("/run/t"))
    }

    #[test]
    fn a_port_for_a_virtual_machine_says_its_socket_and_what_qemu_takes() {
        let text = said("vale0:vm1", &serde_json::json!({ "vhost_user": {} })).unwrap();
        assert!(text.starts_with("its socket is /run/t/vale0-vm1.sock; QEMU takes\n"), "{text}");
        assert!(text.contains("path=/run/t/vale0-vm1.sock,reconnect=1"), "{text}");
        assert!(text.contains("share=on") && text.contains(",mac=52:54:00:00:00:01"), "{text}");
        let listens =
            serde_json::json!({ "vhost_user": { "path": "/tmp/a b.sock", "client": true } });
        let text = said("vale0:vm1", &listens).unwrap();
        assert!(text.contains("path='/tmp/a b.sock',server=on,wait=off"), "{text}");
        let nic = serde_json::json!({ "vfio_user": { "nic": { "model": "82574l" } } });
        let text = said("vale0:vm2", &nic).unwrap();
        assert!(text.contains(r#""driver":"vfio-user-pci""#), "{text}");
        assert!(text.contains(r#""path":"/run/t/vale0-vm2.sock""#), "{text}");
        let text = said("vale0:p", &serde_json::json!({ "stream": {} })).unwrap();
        assert!(text.contains("addr.path=/run/t/vale0-p.sock"), "{text}");
        for other in [
            serde_json::json!("ring"),
            serde_json::json!({ "stream": { "address": "127.0.0.1:7" } }),
            serde_json::json!({ "stream": { "address": "/x", "client": true } }),
        ] {
            assert_eq!(said("vale0:p", &other), None, "{other}");
        }
    }
}
