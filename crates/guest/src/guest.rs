//! A guest: a stack and the application that runs on it.

use std::fmt;
use std::net::SocketAddr;
use std::ops::ControlFlow;

use tcp::{ConnId, Events, ListenerId, Machine, Nanos, OpenError};

use crate::app::{App, Connections};
use crate::clock;
use crate::nic::Nic;
use crate::stack::{ConnectError, Stack};

/// How long after a segment or a datagram [`Guest::run`] polls for another before it sleeps.
const SPIN: u64 = 50 * Nanos::MICRO;

/// A small machine: a NIC, a TCP/IP stack and an application.
pub struct Guest<N, A: App> {
    stack: Stack<N>,
    connections: Connections<A>,
    listeners: Vec<ListenerId>,
}

impl<N, A: App> fmt::Debug for Guest<N, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guest({} connections)", self.connections.len())
    }
}

impl<N: Nic, A: App> Guest<N, A> {
    /// Makes a guest that runs `app` on `stack`.
    #[must_use]
    pub fn new(stack: Stack<N>, app: A) -> Self {
        Self { stack, connections: Connections::new(app), listeners: Vec::new() }
    }

    /// Accepts connections at a TCP port.
    ///
    /// # Errors
    /// As for [`Machine::listen`].
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<(), OpenError> {
        self.listeners.push(self.stack.listen(port, backlog)?);
        Ok(())
    }

    /// Opens a connection. The application learns the result by [`App::connected`] or
    /// [`App::closed`].
    ///
    /// # Errors
    /// As for [`Stack::connect`].
    pub fn connect(
        &mut self,
        to: impl Into<SocketAddr>,
        conn: A::Conn,
        now: Nanos,
    ) -> Result<(), ConnectError> {
        let id = self.stack.connect(to, now)?;
        if let Some(flow) = self.stack.tcp().flow(id) {
            self.connections.opened(id, flow, conn);
        }
        Ok(())
    }

    /// Runs one turn: receives, lets the application answer, sends. Returns when to call it again
    /// if no frame arrives before.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, N::Error> {
        let Self { stack, connections, listeners } = self;
        connections.now = now;
        stack.receive(now, connections);
        let machine = stack.tcp();
        for listener in listeners {
            while let Some(id) = machine.accept(*listener) {
                if let Some(flow) = machine.flow(id) {
                    connections.accepted(id, flow);
                    connections.make_room(machine, id);
                }
            }
        }
        connections.settle(machine);
        while let Some((id, events)) = machine.next_event() {
            happened(connections, machine, id, events);
            connections.settle(machine);
        }
        connections.wake(machine);
        stack.transmit(now)
    }

    /// Runs until `done` returns true, and sleeps while there is no work. Its turns are told
    /// [`now`](crate::now).
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn run(&mut self, mut done: impl FnMut(&mut A) -> bool) -> Result<(), N::Error> {
        self.run_with(|_, app, _| match done(app) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(None),
        })
    }

    /// Like [`run`](Self::run), until `work` breaks off. Before each turn, `work` may use the
    /// stack; it returns when it is to be called again if no frame arrives before.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn run_with(
        &mut self,
        mut work: impl FnMut(&mut Stack<N>, &mut A, Nanos) -> ControlFlow<(), Option<Nanos>>,
    ) -> Result<(), N::Error> {
        let (mut last, mut seen) = (Nanos(0), 0);
        loop {
            let now = clock::now();
            let (stack, app) = self.parts();
            let ControlFlow::Continue(due) = work(stack, app, now) else { return Ok(()) };
            let deadline = self.poll(now)?;
            let heard = self.stack.heard();
            if heard != seen {
                (last, seen) = (now, heard);
            }
            match now - last < SPIN {
                true => std::hint::spin_loop(),
                false => self.stack.wait(deadline.into_iter().chain(due).min(), now)?,
            }
        }
    }

    /// The application.
    pub fn app(&mut self) -> &mut A {
        &mut self.connections.app
    }

    /// The application, to look at.
    #[must_use]
    pub fn app_ref(&self) -> &A {
        &self.connections.app
    }

    /// The stack.
    pub fn stack(&mut self) -> &mut Stack<N> {
        &mut self.stack
    }

    /// The stack and the application, for one that uses the stack between turns.
    pub fn parts(&mut self) -> (&mut Stack<N>, &mut A) {
        (&mut self.stack, &mut self.connections.app)
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// Tells the application about an event of a connection.
fn happened<A: App>(
    connections: &mut Connections<A>,
    machine: &mut Machine,
    id: ConnId,
    events: Events,
) {
    if events.contains(Events::CONNECTED) {
        connections.connected(id);
    }
    if events.contains(Events::WRITABLE) {
        connections.drain(machine, id);
    }
    // Offers again the data that the connection could not take.
    connections.pump(machine, id);
    if events.contains(Events::CLOSED) {
        let reason = machine.close_reason(id);
        machine.close(id, connections.now);
        connections.forget(id, reason);
    }
}
