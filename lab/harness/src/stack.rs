//! A TCP stack of a program's own, on a port of the switch: smoltcp, which trusts no checksum.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use netring::Port;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

/// The head of an HTTP response with `len` bytes of body.
pub fn head(len: usize) -> String {
    format!("HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n")
}

/// The part of an HTTP response after its head.
pub fn body(answer: &[u8]) -> Option<&[u8]> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(&answer[end + 4..])
}

/// Serves a page at port 80 of an address, and fetches those of others.
pub struct Stack {
    fetch: Option<Sender<(Ipv4Addr, Sender<Vec<u8>>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Stack {
    /// Starts one at a port, with an address and the page that it serves.
    pub fn start(port: Port, address: Ipv4Addr, page: Vec<u8>) -> Self {
        let (fetch, wanted) = channel();
        let thread = std::thread::spawn(move || Runner::new(port, address, page).run(&wanted));
        Self { fetch: Some(fetch), thread: Some(thread) }
    }

    /// The page of another stack, or the part of it that arrived before the connection ended.
    pub fn fetch(&self, from: Ipv4Addr) -> Vec<u8> {
        let (reply, page) = channel();
        self.fetch.as_ref().unwrap().send((from, reply)).unwrap();
        body(&page.recv().expect("the stack runs")).unwrap_or_default().to_vec()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.fetch = None;
        let _ = self.thread.take().unwrap().join();
    }
}

struct Wire(Port);

struct Arrived(Vec<u8>);

struct Leaving<'a>(&'a mut Port);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    /// A frame without room is lost: TCP sends it again.
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = vec![0; len];
        let result = f(&mut bytes);
        self.0.send(1).push(&bytes);
        self.0.flush().unwrap();
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        let frame = self.0.receive(1).next().map(|frame| frame.to_vec());
        self.0.flush().unwrap();
        Some((Arrived(frame?), Leaving(&mut self.0)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// A connection, the bytes that are left to send on it, and the bytes received.
struct Talk {
    socket: SocketHandle,
    left: Vec<u8>,
    got: Vec<u8>,
    /// The receiver of the response. It is `None` for a connection of the server.
    reply: Option<Sender<Vec<u8>>>,
}

struct Runner {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    talks: Vec<Talk>,
    answer: Vec<u8>,
    local_port: u16,
}

impl Runner {
    fn new(port: Port, address: Ipv4Addr, page: Vec<u8>) -> Self {
        let mut wire = Wire(port);
        let mac = EthernetAddress([2, 0, 0, 0, 1, address.octets()[3]]);
        let mut interface = Interface::new(Config::new(mac.into()), &mut wire, Instant::now());
        interface.update_ip_addrs(|list| list.push(IpCidr::new(address.into(), 24)).unwrap());
        let mut answer = head(page.len()).into_bytes();
        answer.extend(page);
        let sockets = SocketSet::new(Vec::new());
        let mut runner =
            Self { wire, interface, sockets, talks: Vec::new(), answer, local_port: 50_000 };
        for _ in 0..8 {
            let socket = runner.socket();
            runner.talks.push(Talk { socket, left: Vec::new(), got: Vec::new(), reply: None });
        }
        runner
    }

    fn socket(&mut self) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; 16384]);
        self.sockets.add(Socket::new(buffer(), buffer()))
    }

    fn run(mut self, wanted: &Receiver<(Ipv4Addr, Sender<Vec<u8>>)>) {
        loop {
            match wanted.try_recv() {
                Ok((from, reply)) => self.ask(from, reply),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            self.interface.poll(Instant::now(), &mut self.wire, &mut self.sockets);
            let (sockets, answer) = (&mut self.sockets, &self.answer);
            self.talks.retain_mut(|talk| talk.go_on(sockets, answer));
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn ask(&mut self, from: Ipv4Addr, reply: Sender<Vec<u8>>) {
        let handle = self.socket();
        self.local_port += 1;
        let socket = self.sockets.get_mut::<Socket>(handle);
        socket.connect(self.interface.context(), (from, 80), self.local_port).unwrap();
        let left = b"GET /f HTTP/1.0\r\n\r\n".to_vec();
        self.talks.push(Talk { socket: handle, left, got: Vec::new(), reply: Some(reply) });
    }
}

impl Talk {
    /// Sends and receives as much as is possible now. Returns false once the connection has ended.
    fn go_on(&mut self, sockets: &mut SocketSet<'static>, answer: &[u8]) -> bool {
        let socket = sockets.get_mut::<Socket>(self.socket);
        if !socket.is_open() {
            if let Some(reply) = self.reply.take() {
                sockets.remove(self.socket);
                let _ = reply.send(std::mem::take(&mut self.got));
                return false;
            }
            self.got.clear();
            self.left.clear();
            socket.listen(80).unwrap();
        }
        while socket.can_recv() {
            let _ = socket.recv(|bytes| {
                self.got.extend_from_slice(bytes);
                (bytes.len(), ())
            });
        }
        let asked = self.reply.is_none() && body(&self.got).is_some();
        if asked && self.left.is_empty() {
            self.got.clear();
            self.left = answer.to_vec();
        }
        if socket.can_send() && !self.left.is_empty() {
            let sent = socket.send_slice(&self.left).unwrap_or(0);
            self.left.drain(..sent);
            if self.left.is_empty() && self.reply.is_none() {
                socket.close();
            }
        }
        // The other side has sent everything, and so has this side.
        if self.reply.is_some() && self.left.is_empty() && socket.may_send() && !socket.may_recv() {
            socket.close();
        }
        true
    }
}
