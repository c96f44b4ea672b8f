//! What a vhost-user front end says: any messages, in any order, with any descriptors, are carried
//! out, refused or end the session; the queues that run by then, over memory of any content that
//! may also be cut short, are served without a fault of ours; what is kept of the session is the
//! same when it is taken back, and a successor goes on with it at any time.
//!
//! The input is a list of steps: code, flags, descriptors, length, and so many bytes. One whose
//! flags say so is no message, but a write to the guest's memory.
#![no_main]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dataplane::attach::guest::FrontEnd as _;
use dataplane::attach::virtio::VhostUser;
use dataplane::attach::virtio::message::{self, ProtocolError};
use dataplane::attach::virtio::session::{Answer, Offer, Session};
use dataplane::state::PortState;
use jail::strangers::Descriptor;
use libfuzzer_sys::fuzz_target;
use port::Nanos;
use shmem::budget::Account;
use toklat_fuzz::{
    Costs, Lines, Memory, Thread, assert_same, connection, drain, port_state, serve, take,
};
use turn::attach::Attached;

const OFFER: Offer = Offer { queue_pairs: 2, mac: None, mtu: 1500, link: true };
/// A step's flags. With this one, the front end wants a reply.
const NEED_REPLY: u8 = 1;
/// frames arrive after it,
const DELIVER: u8 = 2;
/// this process dies after it,
const RESTART: u8 = 4;
/// From this step on, a second thread changes the guest's memory.
const SCRIBBLE: u8 = 8;
/// or it is a write.
const WRITE: u8 = 0x80;

/// A front end, its guest's memory, and who serves it.
struct Port {
    theirs: OwnedFd,
    memory: Memory,
    /// What the keeper has.
    ours: OwnedFd,
    state: PortState,
    front_end: VhostUser,
    attached: Option<Attached>,
    scribbler: Option<Thread>,
    lines: Lines,
    now: Nanos,
}

impl Port {
    fn new() -> Option<Self> {
        let (theirs, ours) = connection().ok()?;
        let (memory, state) = (Memory::new().ok()?, port_state());
        let front_end = VhostUser::new(
            Descriptor::ours(ours.try_clone().ok()?),
            OFFER,
            &state,
            &Account::unlimited(),
            None,
        );
        let front_end = front_end.expect("a socket");
        Some(Self {
            theirs,
            memory,
            ours,
            state,
            front_end,
            attached: None,
            scribbler: None,
            lines: Lines::default(),
            now: Nanos(1),
        })
    }

    /// Carries the next step of `bytes` out.
    fn step(&mut self, bytes: &mut &[u8]) -> Result<(), ProtocolError> {
        let [code, flags, fds, len] = *take(bytes, 4) else {
            *bytes = &[];
            return Ok(());
        };
        let payload = take(bytes, usize::from(len));
        if flags & WRITE != 0 {
            self.memory.write(u16::from_be_bytes([code, fds]), payload);
        } else {
            let fds = self.memory.descriptors(fds);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let (code, need_reply) = (u32::from(code % 48), flags & NEED_REPLY != 0);
            let _ = message::send(&self.theirs, code, need_reply, payload, &fds);
            self.converse()?;
        }
        if flags & SCRIBBLE != 0 && self.scribbler.is_none() {
            self.scribbler = self.memory.scribble(u64::from(code) << 8 | u64::from(fds));
        }
        if flags & RESTART != 0 {
            self.restart();
        }
        self.serve(flags & DELIVER != 0);
        Ok(())
    }

    fn converse(&mut self) -> Result<(), ProtocolError> {
        while let Some(message) = self.front_end.receive()? {
            let answer = self.front_end.session.handle(message.request)?;
            if let Ok(Answer::Announce(mac)) = answer {
                self.front_end.announce(mac);
                self.remake();
            } else if self.front_end.take_changes().rings {
                self.remake();
            }
            let acknowledges = self.front_end.session.is_acknowledged(message.need_reply);
            self.front_end.done()?;
            self.front_end.session.taken();
            match answer {
                Ok(Answer::Bytes(bytes)) => self.reply(message.code, &bytes, None)?,
                Ok(Answer::File(bytes, file)) => self.reply(message.code, &bytes, Some(file))?,
                Ok(Answer::Base(queue)) => {
                    let base = self.front_end.base(queue).to_ne_bytes();
                    self.reply(message.code, &base, None)?;
                }
                Ok(_) => {}
                Err(_) if acknowledges => {}
                Err(_) => return Err(ProtocolError::Refused),
            }
        }
        Ok(())
    }

    fn reply(
        &mut self,
        code: u32,
        bytes: &[u8],
        file: Option<Arc<Descriptor>>,
    ) -> Result<(), ProtocolError> {
        self.front_end.send(&message::reply(code, bytes), file)?;
        drain(&self.theirs);
        Ok(())
    }

    /// Rebuilds the halves.
    fn remake(&mut self) {
        self.attached = None;
        self.attached = self.front_end.make_halves().ok().map(|(attached, _)| attached);
    }

    /// Serves the queues that run.
    fn serve(&mut self, deliver_frames: bool) {
        self.now = self.now + 1_000_000;
        let Some(attached) = &mut self.attached else { return };
        serve(attached, deliver_frames, self.now);
        self.lines.take(self.front_end.new_faults());
    }

    /// As a successor of a process that died.
    fn restart(&mut self) {
        let kept = self.front_end.to_keep();
        self.attached = None;
        let socket = Descriptor::ours(self.ours.try_clone().expect("a descriptor"));
        self.front_end =
            VhostUser::new(socket, OFFER, &self.state, &Account::unlimited(), Some(kept))
                .expect("a socket");
        self.remake();
    }
}

fuzz_target!(|bytes: &[u8]| {
    shmem::guard::install();
    // What is made once is made.
    drop(Port::new());
    let costs = Costs::now();
    carry_out(bytes);
    costs.assert_gone();
});

fn carry_out(bytes: &[u8]) {
    let Some(mut port) = Port::new() else { return };
    let mut rest = bytes;
    while !rest.is_empty() {
        if Costs::step(|| port.step(&mut rest)).is_err() {
            port.front_end.end();
            port.remake();
            break;
        }
    }
    port.lines.take(port.front_end.new_faults());
    std::mem::take(&mut port.lines).assert_few();
    let kept = port.front_end.session.kept();
    if let Some(restored) = Session::restore(OFFER, &kept, &Account::unlimited()) {
        assert_same(&kept, &restored.kept());
    }
}
