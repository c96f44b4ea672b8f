//! passt, and a world for it to lead to.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::namespace::Namespace;

/// A server outside, which passt connects to. Its address is not that of the interface that passt
/// shows to guests.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// passt, in the foreground.
pub struct Passt(Child);

impl Passt {
    /// Starts it in a namespace, with this socket for one guest.
    pub fn start(world: &Namespace, socket: &Path) -> Self {
        let socket = socket.to_str().unwrap();
        let args = ["passt", "--foreground", "--quiet", "--mtu", "1500", "--socket", socket];
        let mut command = world.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// By SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Guest commands that get an address by DHCP: one writes udhcpc's script, one runs it and prints
/// `toklat-guest: leased ADDRESS/BITS of ROUTER`.
pub fn lease() -> [String; 2] {
    let script = "printf '#!/bin/sh\\n[ $1 = bound ] || exit 0\\nip addr flush dev eth0\\n\
         ip addr add $ip/$mask dev eth0\\nip route add default via $router\\n\
         echo toklat-guest: leased $ip/$mask of $router\\n' >/tmp/lease; chmod +x /tmp/lease";
    [script.to_owned(), "udhcpc -i eth0 -n -q -t 20 -T 1 -s /tmp/lease".to_owned()]
}

/// A network namespace with a way into the world, and a server there.
pub fn world() -> Result<Namespace, &'static str> {
    if Command::new("passt").arg("--version").output().is_err() {
        return Err("passt is missing");
    }
    let world = Namespace::new()?;
    for command in [
        "ip link set lo up",
        "ip tuntap add uplink mode tap",
        "ip addr add 192.0.2.2/24 dev uplink",
        "ip link set uplink up",
        "ip route add default via 192.0.2.1 dev uplink",
        &format!("ip addr add {SERVER}/32 dev lo"),
    ] {
        let done = world.command(&command.split(' ').collect::<Vec<_>>()).status().unwrap();
        assert!(done.success(), "{command}");
    }
    Ok(world)
}

/// Serves all connections in the outside world, until the tests end.
pub fn serve(world: &Namespace, port: u16, with: impl Fn(TcpStream) + Send + 'static) {
    let listener = world.enter(|| TcpListener::bind((SERVER, port)).unwrap());
    std::thread::spawn(move || listener.incoming().flatten().for_each(with));
}
