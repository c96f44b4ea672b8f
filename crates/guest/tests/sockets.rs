//! Async sockets: tasks of two hosts on an inline switch, in virtual time.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use frame::OffloadSet;
use futures_io::{AsyncRead, AsyncWrite};
use guest::sockets::Net;
use guest::{Bytes, Nanos, RingNic};

mod world;

use world::{CLIENT, SERVER, World};

const WEB: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(SERVER, 80));

struct Pair {
    world: World,
    server: Net<RingNic>,
    client: Net<RingNic>,
}

impl Pair {
    fn new() -> Self {
        let mut world = World { offloads: OffloadSet::ALL, ..World::new() };
        let [server, client] = [SERVER, CLIENT].map(|host| Net::new(world.host(host, None)));
        Self { world, server, client }
    }

    /// Runs turns until `done`.
    fn until(&mut self, done: impl Fn() -> bool) {
        for turn in 0.. {
            self.client.poll(self.world.now).unwrap();
            self.world.turn();
            self.server.poll(self.world.now).unwrap();
            self.world.turn();
            if done() {
                return;
            }
            assert!(turn < 1_000_000, "{:?} {:?}", self.client, self.server);
        }
    }

    /// Lets time pass.
    fn pass(&mut self, nanos: u64) {
        self.world.now = self.world.now + nanos;
        self.until(|| true);
    }
}

fn document(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_stream_crosses_byte_for_byte_and_waits_for_a_slow_reader() {
    let mut pair = Pair::new();
    let listener = pair.server.listen(80, 4).unwrap();
    let (timer, read) = (pair.server.timer(), Rc::new(RefCell::new(Vec::<u8>::new())));
    let came = Rc::clone(&read);
    pair.server.spawn(async move {
        let stream = listener.accept().await;
        let mut buffer = vec![0; 10_000];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            came.borrow_mut().extend(&buffer[..n]);
            if came.borrow().len() < 1 << 20 {
                timer.sleep(Duration::from_micros(50)).await;
            }
        }
        stream.write_all(b"got it").await.unwrap();
    });
    let (net, answer) = (pair.client.clone(), Rc::new(RefCell::new(Vec::<u8>::new())));
    let told = Rc::clone(&answer);
    pair.client.spawn(async move {
        let stream = net.connect(WEB).await.unwrap();
        stream.write_all(&document(3 << 20)).await.unwrap();
        stream.send(Bytes::from(document(1000))).await.unwrap();
        stream.finish();
        let mut buffer = [0; 100];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            told.borrow_mut().extend(&buffer[..n]);
        }
    });
    pair.until(|| *answer.borrow() == b"got it");
    assert!(*read.borrow() == [document(3 << 20), document(1000)].concat());
    let memory = pair.server.with_stack(|stack| stack.usage().tcp.memory);
    assert!(memory < 8 << 20, "{memory}");
}

#[test]
fn errors_of_connections_are_errors_of_calls() {
    let mut pair = Pair::new();
    let listener = pair.server.listen(80, 4).unwrap();
    pair.server.spawn(async move {
        // Unread data makes the close a reset.
        let stream = listener.accept().await;
        let mut one = [0];
        stream.read(&mut one).await.unwrap();
        drop(stream);
    });
    let (net, errors) = (pair.client.clone(), Rc::new(RefCell::new(Vec::new())));
    let told = Rc::clone(&errors);
    pair.client.spawn(async move {
        let refused = net.connect(SocketAddr::new(SERVER.into(), 81)).await.unwrap_err();
        let nowhere = net.connect("[fd00::1]:80".parse::<SocketAddr>().unwrap()).await.unwrap_err();
        let stream = net.connect(WEB).await.unwrap();
        stream.write_all(&[1; 1000]).await.unwrap();
        let reset = stream.read(&mut [0; 10]).await.unwrap_err();
        let closed = stream.write_all(&[1]).await.unwrap_err();
        *told.borrow_mut() = vec![refused.kind(), nowhere.kind(), reset.kind(), closed.kind()];
    });
    pair.until(|| !errors.borrow().is_empty());
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, ConnectionReset};
    let expected = [ConnectionRefused, AddrNotAvailable, ConnectionReset, ConnectionReset];
    assert_eq!(*errors.borrow(), expected);
    pair.until(|| true);
    let left = pair.client.with_stack(|stack| stack.usage().tcp.connections);
    assert_eq!(left, 0, "handles are freed");
}

#[test]
fn timers_wake_in_order_and_dropped_ones_do_not() {
    let mut pair = Pair::new();
    let log = Rc::new(RefCell::new(Vec::new()));
    for millis in [30, 10, 20] {
        let (net, log) = (pair.client.clone(), Rc::clone(&log));
        pair.client.spawn(async move {
            net.sleep(Duration::from_millis(millis)).await;
            log.borrow_mut().push(millis);
        });
    }
    pair.until(|| true);
    {
        // A sleep that was polled and given up.
        let mut sleep = Box::pin(pair.client.sleep(Duration::from_millis(5)));
        let waker = std::task::Waker::noop();
        assert!(
            Future::poll(sleep.as_mut(), &mut std::task::Context::from_waker(waker)).is_pending()
        );
    }
    let due = pair.client.poll(pair.world.now).unwrap().unwrap();
    assert!((due - pair.world.now).abs_diff(10 * Nanos::MILLI) < Nanos::MILLI);
    pair.pass(15 * Nanos::MILLI);
    assert_eq!(*log.borrow(), [10]);
    pair.pass(20 * Nanos::MILLI);
    pair.until(|| log.borrow().len() == 3);
    assert_eq!(*log.borrow(), [10, 20, 30]);
    assert_eq!(format!("{:?}", pair.client), "Net(0 tasks)");
}

#[test]
fn a_task_that_never_waits_does_not_keep_frames_from_others() {
    let mut pair = Pair::new();
    let (turns, came) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let count = Rc::clone(&turns);
    pair.server.spawn(async move {
        loop {
            count.set(count.get() + 1);
            let mut again = true;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                match std::mem::take(&mut again) {
                    true => std::task::Poll::Pending,
                    false => std::task::Poll::Ready(()),
                }
            })
            .await;
        }
    });
    let socket = pair.server.bind(7).unwrap();
    let here = Rc::clone(&came);
    pair.server.spawn(async move {
        let (from, data) = socket.receive().await;
        socket.send(from, &data).unwrap();
        here.set(true);
    });
    let (net, answered) = (pair.client.clone(), Rc::new(Cell::new(false)));
    let done = Rc::clone(&answered);
    pair.client.spawn(async move {
        let socket = net.bind(9).unwrap();
        socket.send(SocketAddr::new(SERVER.into(), 7), b"datagram").unwrap();
        done.set(&*socket.receive().await.1 == b"datagram");
    });
    pair.until(|| answered.get());
    assert!(came.get() && turns.get() > 1, "{}", turns.get());
}

/// What futures-io's users see: read and write by the traits alone.
#[test]
fn streams_have_the_traits_of_futures_io() {
    async fn echo<S: AsyncRead + AsyncWrite>(stream: S) -> std::io::Result<u64> {
        let (mut stream, mut buffer, mut total) = (std::pin::pin!(stream), [0; 100], 0);
        loop {
            let read = std::future::poll_fn(|cx| stream.as_mut().poll_read(cx, &mut buffer));
            let n = read.await?;
            if n == 0 {
                std::future::poll_fn(|cx| stream.as_mut().poll_close(cx)).await?;
                return Ok(total);
            }
            let (mut rest, data) = (0, &buffer[..n]);
            while rest < n {
                let write = |cx: &mut std::task::Context<'_>| {
                    Pin::as_mut(&mut stream).poll_write(cx, &data[rest..])
                };
                rest += std::future::poll_fn(write).await?;
            }
            total += n as u64;
        }
    }
    let mut pair = Pair::new();
    let listener = pair.server.listen(80, 4).unwrap();
    let total = Rc::new(Cell::new(0));
    let sum = Rc::clone(&total);
    pair.server.spawn(async move { sum.set(echo(listener.accept().await).await.unwrap()) });
    let (net, same) = (pair.client.clone(), Rc::new(Cell::new(false)));
    let result = Rc::clone(&same);
    pair.client.spawn(async move {
        let stream = net.connect(WEB).await.unwrap();
        let (sent, mut came) = (document(50_000), Vec::<u8>::new());
        stream.write_all(&sent).await.unwrap();
        stream.finish();
        let mut buffer = [0; 999];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            came.extend(&buffer[..n]);
        }
        result.set(came == sent);
    });
    pair.until(|| same.get());
    assert_eq!(total.get(), 50_000);
}
