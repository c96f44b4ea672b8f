//! Hosts for tests of tunnels: namespaces on one link, each with an address of both IP versions.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use crate::namespace::Namespace;

/// Hosts 1, 2, ... on one link: host n is 10.99.0.n and fd99::n.
pub struct Underlay {
    _link: Namespace,
    /// Host n is at index n - 1.
    pub hosts: Vec<Namespace>,
}

impl Underlay {
    /// Makes `count` hosts. Otherwise returns why hosts cannot be made here.
    pub fn new(count: usize) -> Result<Self, &'static str> {
        let link = Namespace::new()?;
        if !link.command(&["ethtool", "--version"]).output().is_ok_and(|o| o.status.success()) {
            return Err("ethtool is missing");
        }
        if !try_ip(&link, "link add br0 type bridge") {
            return Err("the kernel has no bridges");
        }
        ip(&link, "link set br0 up");
        let hosts: Vec<_> = (0..count).map(|_| Namespace::new()).collect::<Result<_, _>>()?;
        for (host, number) in hosts.iter().zip(1..) {
            ip(&link, &format!("link add p{number} type veth peer name u0 netns {}", host.id()));
            ip(&link, &format!("link set p{number} master br0 up"));
            for address in [format!("10.99.0.{number}/24"), format!("fd99::{number}/64 nodad")] {
                ip(host, &format!("address add {address} dev u0"));
            }
            ip(host, "link set u0 up");
            ip(host, "link set lo up");
        }
        Ok(Self { _link: link, hosts })
    }

    /// Makes host `number` the other end of a VXLAN tunnel, by its kernel. `inside` is its address
    /// in the segment.
    pub fn kernel_tunnel(&self, number: usize, (vni, how): (u32, &str), inside: &str) -> bool {
        let host = &self.hosts[number - 1];
        complete_checksums(host);
        let made = try_ip(host, &format!("link add vx{vni} type vxlan id {vni} {how}"));
        if made {
            ip(host, &format!("address add {inside} dev vx{vni}"));
            ip(host, &format!("link set vx{vni} mtu 1400 up"));
        }
        made
    }
}

/// Makes a host complete checksums and cut segments itself. The kernel leaves both to the device,
/// and a veth does neither, inside of tunnels and for AF_XDP.
pub fn complete_checksums(host: &Namespace) {
    host.run(&["ethtool", "-K", "u0", "tx", "off", "tso", "off", "gso", "off"]);
}

/// True if `ip` with these arguments succeeds.
pub fn try_ip(namespace: &Namespace, arguments: &str) -> bool {
    let mut args = vec!["ip"];
    args.extend(arguments.split_whitespace());
    namespace.command(&args).output().is_ok_and(|output| output.status.success())
}

/// Runs `ip` with these arguments, which must succeed.
pub fn ip(namespace: &Namespace, arguments: &str) {
    assert!(try_ip(namespace, arguments), "ip {arguments}");
}

/// True if `to` answers one of a few pings.
pub fn pings(from: &Namespace, to: &str) -> bool {
    let args = ["ping", "-n", "-c", "1", "-W", "1", to];
    (0..20).any(|_| from.command(&args).output().unwrap().status.success())
}

/// Sends `bytes` over TCP from one namespace to an address in another, and asserts that they arrive
/// unchanged.
pub fn transfer(from: &Namespace, (to, address): (&Namespace, &str), bytes: usize) {
    let ip: IpAddr = address.parse().unwrap();
    let listener = to.enter(|| TcpListener::bind(SocketAddr::new(ip, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let pattern = |i: usize| (i * 31 + i / 251) as u8;
    let sent: Vec<u8> = (0..bytes).map(pattern).collect();
    let got = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        let mut stream = from.enter(|| TcpStream::connect_timeout(&at, crate::PATIENCE).unwrap());
        stream.set_write_timeout(Some(crate::PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(got == sent, "{} of {bytes} bytes, or other ones", got.len());
}
