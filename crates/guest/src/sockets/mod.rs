//! Async sockets: tasks on one thread, over a stack's turns.
//!
//! ```no_run
//! use guest::sockets::Net;
//! use guest::{Host, RingNic, tcp::OpenError};
//!
//! /// Sends back what comes.
//! async fn echo(net: Net<RingNic>) -> Result<(), OpenError> {
//!     let listener = net.listen(7, 128)?;
//!     loop {
//!         let stream = listener.accept().await;
//!         net.spawn(async move {
//!             let mut buffer = vec![0; 16 << 10];
//!             while let Ok(n @ 1..) = stream.read(&mut buffer).await {
//!                 if stream.write_all(&buffer[..n]).await.is_err() {
//!                     break;
//!                 }
//!             }
//!         });
//!     }
//! }
//!
//! Host::from_env()?.run(|stack| {
//!     let net = Net::new(stack);
//!     Ok(net.run(echo(net.clone()))??)
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `futures-io`, a [`TcpStream`] has the traits of that crate; with `hyper`, those
//! of `hyper::rt`, and [`Net::timer`] is a timer for it. So protocol crates run unchanged.
//!
//! - **A turn** receives, wakes what waited for it, runs tasks that are ready, and sends. A task
//!   that is ready again at once waits for the next turn, so no task keeps frames from others.
//! - **Tasks stay on the thread.** A waker may be used on another thread, but does not end the
//!   sleep of the NIC: it takes effect at the next turn.
//! - **Memory** is TCP's, which is bounded, and that of the tasks. A peer that sends more than a
//!   task reads closes its window.

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
mod hyper;
mod task;
mod tcp;
mod time;
mod udp;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::tcp::{Buffered, ConnId, Events, ListenerId, Nanos, OpenError};

use crate::clock;
use crate::nic::Nic;
use crate::stack::{ConnectError, Stack};
use crate::udp::{UdpError, UdpId};

use task::{MAIN, Tasks};
pub use tcp::{TcpListener, TcpStream};
use time::Timers;
pub use time::{Sleep, Timer};
pub use udp::UdpSocket;

/// How long after a segment or a datagram [`Net::run`] polls for another before it sleeps.
const SPIN: u64 = 50 * Nanos::MICRO;

/// What waits for a connection.
#[derive(Debug, Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// A stack, and what waits for it.
struct Shared<N> {
    stack: RefCell<Stack<N>>,
    connections: RefCell<HashMap<ConnId, Waiting>>,
    listeners: RefCell<Vec<(ListenerId, Waker)>>,
    sockets: RefCell<Vec<(UdpId, Waker)>>,
    timers: Timers,
    tasks: Tasks,
    now: Cell<Nanos>,
    /// Datagrams that were there when sockets were last looked at.
    datagrams: Cell<u64>,
}

/// A stack with async sockets, and the tasks that use them. Clones are the same stack.
pub struct Net<N>(Rc<Shared<N>>);

impl<N> Clone for Net<N> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<N> fmt::Debug for Net<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Net({} tasks)", self.0.tasks.len())
    }
}

impl<N: Nic> Net<N> {
    /// Makes sockets of a stack.
    #[must_use]
    pub fn new(stack: Stack<N>) -> Self {
        Self(Rc::new(Shared {
            stack: RefCell::new(stack),
            connections: RefCell::default(),
            listeners: RefCell::default(),
            sockets: RefCell::default(),
            timers: Timers::default(),
            tasks: Tasks::default(),
            now: Cell::new(Nanos(0)),
            datagrams: Cell::new(0),
        }))
    }

    /// Runs `task` beside the others. It ends with [`run`](Self::run) at the latest.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.tasks.spawn(Box::pin(task));
    }

    /// Runs all tasks until `main` has ended, and sleeps while there is no work. Then it drops the
    /// others.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> Result<T, N::Error> {
        let shared = &*self.0;
        let mut main = pin!(main);
        let waker = shared.tasks.main();
        waker.wake_by_ref();
        let (mut last, mut seen) = (Nanos(0), 0);
        loop {
            let now = clock::now();
            let (mut ended, mut busy) = (None, false);
            shared.receive(now);
            for id in shared.tasks.ready() {
                busy = true;
                if id != MAIN {
                    shared.tasks.poll(id);
                } else if let Poll::Ready(result) =
                    main.as_mut().poll(&mut Context::from_waker(&waker))
                {
                    ended = Some(result);
                    break;
                }
            }
            if ended.is_some() {
                shared.tasks.clear();
            }
            let deadline = shared.stack.borrow_mut().transmit(now)?;
            if let Some(result) = ended {
                return Ok(result);
            }
            let heard = shared.stack.borrow().heard();
            if busy || heard != seen {
                (last, seen) = (now, heard);
            }
            if !shared.tasks.are_ready() {
                match now - last < SPIN {
                    true => std::hint::spin_loop(),
                    false => {
                        let due = deadline.into_iter().chain(shared.timers.deadline()).min();
                        shared.stack.borrow_mut().wait(due, now)?;
                    }
                }
            }
        }
    }

    /// Runs one turn at this time. Returns when to call it again if no frame arrives before.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn poll(&self, now: Nanos) -> Result<Option<Nanos>, N::Error> {
        let shared = &*self.0;
        shared.receive(now);
        shared.tasks.ready().into_iter().for_each(|id| shared.tasks.poll(id));
        let deadline = shared.stack.borrow_mut().transmit(now)?;
        Ok(match shared.tasks.are_ready() {
            true => Some(now),
            false => deadline.into_iter().chain(shared.timers.deadline()).min(),
        })
    }

    /// Drops all tasks, and with them the sockets that they hold.
    pub fn end(&self) {
        self.0.tasks.clear();
    }

    /// Accepts connections at a TCP port; at most `backlog` wait.
    ///
    /// # Errors
    /// As for [`Stack::listen`].
    pub fn listen(&self, port: u16, backlog: usize) -> Result<TcpListener<N>, OpenError> {
        let id = self.0.stack.borrow_mut().listen(port, backlog)?;
        Ok(TcpListener::new(self.clone(), id))
    }

    /// Opens a TCP connection.
    ///
    /// # Errors
    /// No address reaches the peer, or it refuses, or does not answer.
    pub async fn connect(&self, to: impl Into<SocketAddr>) -> std::io::Result<TcpStream<N>> {
        let now = self.0.now.get();
        let opened = self.0.stack.borrow_mut().connect(to, now);
        let id = opened.map_err(|error| {
            let kind = match error {
                ConnectError::NoAddress(_) => std::io::ErrorKind::AddrNotAvailable,
                ConnectError::Tcp(_) => std::io::ErrorKind::Other,
            };
            std::io::Error::new(kind, error)
        })?;
        let stream = TcpStream::new(self.clone(), id);
        stream.connected().await?;
        Ok(stream)
    }

    /// Opens a UDP socket.
    ///
    /// # Errors
    /// As for [`Stack::udp_bind`].
    pub fn bind(&self, port: u16) -> Result<UdpSocket<N>, UdpError> {
        let id = self.0.stack.borrow_mut().udp_bind(port)?;
        Ok(UdpSocket::new(self.clone(), id))
    }

    /// Waits for this time.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.0.timers.sleep(time)
    }

    /// A timer for tasks and protocol crates.
    #[must_use]
    pub fn timer(&self) -> Timer {
        Timer::new(&self.0.timers)
    }

    /// When this turn began.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.0.now.get()
    }

    /// Lets `look` see the stack: its addresses, counters and settings.
    pub fn with_stack<T>(&self, look: impl FnOnce(&mut Stack<N>) -> T) -> T {
        look(&mut self.0.stack.borrow_mut())
    }
}

/// Notes that a task waits for `id`, once.
fn register<I: PartialEq>(waiting: &mut Vec<(I, Waker)>, id: I, waker: &Waker) {
    if !waiting.iter().any(|(of, known)| *of == id && known.will_wake(waker)) {
        waiting.push((id, waker.clone()));
    }
}

impl<N: Nic> Shared<N> {
    /// The first half of a turn: receives, and wakes what waited for it.
    fn receive(&self, now: Nanos) {
        self.now.set(now);
        self.timers.run(now);
        let mut stack = self.stack.borrow_mut();
        stack.receive(now, &mut Buffered);
        let mut connections = self.connections.borrow_mut();
        while let Some((id, events)) = stack.tcp().next_event() {
            let Some(waiting) = connections.get_mut(&id) else { continue };
            if events.intersects(Events::READABLE | Events::PEER_CLOSED | Events::CLOSED) {
                waiting.reader.take().into_iter().for_each(Waker::wake);
            }
            if events.intersects(Events::CONNECTED | Events::WRITABLE | Events::CLOSED) {
                waiting.writer.take().into_iter().for_each(Waker::wake);
            }
        }
        let machine = stack.tcp();
        self.listeners.borrow_mut().retain(|(id, waker)| {
            let comes = machine.waiting(*id) > 0;
            if comes {
                waker.wake_by_ref();
            }
            !comes
        });
        let datagrams = stack.counters().datagrams_in;
        if self.datagrams.replace(datagrams) != datagrams {
            self.sockets.borrow_mut().drain(..).for_each(|(_, waker)| waker.wake());
        }
    }
}
