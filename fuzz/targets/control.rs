//! What a supervisor says to a data process, which runs in threads of this one: any bytes are
//! refused or are a message that is the same after a round trip. Each message has one answer in
//! time, with any descriptors beside it; what is no message ends the connection and nothing else.
//! The ports that are there by then are those that were added and not removed, as they were last
//! told to be. Nothing is left when the process has stopped.
//!
//! The input is lines: a digit that stands for descriptors, if one does, and a message.
#![no_main]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use dataplane::config::{PortConfig, PortId, SwitchConfig};
use dataplane::control::{self, Answer, ChannelError, Command, VERSION};
use dataplane::state;
use libfuzzer_sys::fuzz_target;
use rustix::net::{SendFlags, SocketAddrUnix};
use toklat_fuzz::{Costs, Memory, data_process};

/// The maximum number of messages of an input: more would find nothing new.
const MESSAGES: usize = 64;
/// Milliseconds that a process which stops may wait for a receiver.
const STALL_MS: u32 = 100;

/// A data process, and what its supervisor knows.
struct Switch {
    address: SocketAddrUnix,
    thread: JoinHandle<()>,
    connection: OwnedFd,
    memory: Memory,
    ports: BTreeMap<PortId, PortConfig>,
    stopped: bool,
}

impl Switch {
    fn start() -> Self {
        let config = SwitchConfig {
            max_ports: 8,
            fdb_entries: 64,
            stall_timeout_ms: STALL_MS,
            ..SwitchConfig::default()
        };
        let file = shmem::Memfd::create("state", state::file_size(&config), shmem::Pages::Small);
        let (address, thread) = data_process::start(config, file.expect("memory").into_fd());
        let connection = data_process::connect(&address);
        let memory = Memory::new().expect("memory");
        let mut switch =
            Self { address, thread, connection, memory, ports: BTreeMap::new(), stopped: false };
        switch.greet();
        switch
    }

    /// Connects again, and exchanges greetings.
    fn greet(&mut self) {
        self.connection = data_process::connect(&self.address);
        self.send(&Command::Hello { version: VERSION }, 0);
        match self.answer() {
            Ok(Answer::Hello { version: VERSION, switch, .. }) => {
                assert_eq!(switch, data_process::SWITCH);
            }
            other => panic!("{other:?} instead of a greeting"),
        }
    }

    fn send(&self, command: &Command, descriptors: u8) {
        let fds = self.memory.descriptors(descriptors);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        control::send(&self.connection, command, &fds).expect("it reads");
    }

    /// Receives the next answer.
    fn answer(&self) -> Result<Answer, ChannelError> {
        data_process::answer(&self.connection)
    }

    fn ask(&self, command: &Command, descriptors: u8) -> Answer {
        self.send(command, descriptors);
        let answer = self.answer().unwrap_or_else(|error| panic!("{command:?}: {error:?}"));
        if let Answer::Failed { reason } = &answer {
            assert!(!reason.is_empty(), "{command:?} is refused without a reason");
        }
        answer
    }

    /// Sends bytes that are not a message.
    fn babble(&mut self, line: &[u8]) {
        if rustix::net::send(&self.connection, line, SendFlags::NOSIGNAL).is_err() {
            return;
        }
        match self.answer() {
            Err(ChannelError::Closed | ChannelError::Io(rustix::io::Errno::CONNRESET)) => {
                self.greet()
            }
            other => panic!("{other:?} to what is no message"),
        }
    }

    fn carry_out(&mut self, mut command: Command, descriptors: u8) {
        if let Command::SetSwitch { stall_timeout_ms, .. } = &mut command {
            *stall_timeout_ms %= STALL_MS;
        }
        if let Command::ListPorts = command {
            return self.compare();
        }
        let answer = self.ask(&command, descriptors);
        let done = !matches!(answer, Answer::Failed { .. });
        match (command, answer) {
            (Command::Hello { version }, Answer::Hello { .. }) if version != VERSION => {
                assert!(self.answer().is_err(), "another version is left");
                self.greet();
            }
            (Command::Hello { .. }, Answer::Hello { .. }) => {}
            (Command::AddPort { id, config, .. }, Answer::Added { worker: 0 }) => {
                assert!(self.ports.insert(id, config).is_none(), "{id} is used twice");
            }
            (Command::RemovePort { id }, _) => assert_eq!(self.ports.remove(&id).is_some(), done),
            (Command::SetPolicy { id, policy }, Answer::Done) => {
                self.ports.get_mut(&id).expect("it is there").policy = policy;
            }
            (Command::MovePort { id, worker }, Answer::Done) => {
                self.ports.get_mut(&id).expect("it is there").worker = Some(worker);
            }
            (Command::Stop, Answer::Done) => self.stopped = true,
            (_, Answer::Done | Answer::Failed { .. }) => {}
            (command, answer) => panic!("{answer:?} to {command:?}"),
        }
    }

    /// The switch has exactly the ports that it was told to have.
    fn compare(&self) {
        self.send(&Command::ListPorts, 0);
        let mut ports = BTreeMap::new();
        loop {
            match self.answer().expect("an answer") {
                Answer::Port { id, config, .. } => assert!(ports.insert(id, *config).is_none()),
                Answer::Done => break,
                other => panic!("{other:?} instead of a port"),
            }
        }
        assert_eq!(ports, self.ports);
    }

    /// Stops the process, and releases everything.
    fn stop(mut self) {
        if !self.stopped {
            self.compare();
            for id in std::mem::take(&mut self.ports).into_keys() {
                assert_eq!(self.ask(&Command::RemovePort { id }, 0), Answer::Done, "port {id}");
            }
            self.compare();
            assert_eq!(self.ask(&Command::Stop, 0), Answer::Done);
        }
        self.thread.join().expect("it ends well");
    }
}

fuzz_target!(init: {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(dataplane::sandbox::SWITCH, "off") };
}, |bytes: &[u8]| {
    if let Ok(answer) = serde_json::from_slice::<Answer>(bytes) {
        let again = serde_json::to_vec(&answer).expect("a message can be written");
        assert_eq!(serde_json::from_slice::<Answer>(&again).expect("and read again"), answer);
    }
    // One run comes first, so that things that are made once exist before anything is counted.
    Switch::start().stop();
    let costs = Costs::now();
    let mut switch = Switch::start();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(MESSAGES) {
        let (descriptors, line) = match line {
            [digit @ b'0'..=b'9', line @ ..] => (*digit - b'0', line),
            line => (0, line),
        };
        match serde_json::from_slice::<Command>(line) {
            Ok(command) => switch.carry_out(command, descriptors),
            Err(_) if line.is_empty() => {}
            Err(_) => switch.babble(line),
        }
        if switch.stopped {
            break;
        }
    }
    switch.stop();
    costs.assert_gone();
});
