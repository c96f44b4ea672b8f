//! QEMU's models, through qtest: a machine without processors, whose bus a text protocol drives.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::target::{MEMORY, Space, Target};

/// Addresses for the card's base address registers.
const IO: u64 = 0xc000;
const MEM: u64 = 0xe000_0000;
/// The card's place on the bus.
const SLOT: u32 = 4;
/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many machines were started, so that each socket has a name of its own.
static STARTED: AtomicU32 = AtomicU32::new(0);

pub struct Qemu {
    child: Child,
    socket: PathBuf,
    stream: BufReader<UnixStream>,
    /// Where each base address register lies.
    bars: [(u64, bool); 6],
}

impl Qemu {
    /// Starts a machine with one card. With `clock`, the test advances its time. Fails with the
    /// reason if no suitable QEMU exists: neither `$TOKLAT_QEMU`, nor the installed one, nor that
    /// of `cargo xtask qemu`.
    pub fn start(card: &str, clock: bool) -> Result<Self, String> {
        let made = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/qemu/qemu-system-x86_64");
        let named = std::env::var("TOKLAT_QEMU").ok();
        let programs = named.as_deref().into_iter().chain(["qemu-system-x86_64", made]);
        let mut why = Vec::new();
        for program in programs {
            match Self::start_program(program, card, clock) {
                Ok(started) => return Ok(started),
                Err(error) => why.push(error),
            }
        }
        Err(why.join("; "))
    }

    fn start_program(program: &str, card: &str, clock: bool) -> Result<Self, String> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("toklat-qtest-{}-{number}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(|error| error.to_string())?;
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        let device = format!("{card},mac=52:54:00:12:34:56,netdev=n,addr={SLOT},romfile=");
        // Some QEMUs lack that accelerator. Stopped processors work as well, except for the clock.
        let accelerators: &[_] = match clock {
            true => &["-accel", "qtest"],
            false => &["-accel", "qtest", "-accel", "tcg", "-S"],
        };
        let child = Command::new(program)
            .args(["-machine", "pc", "-m", "32", "-nodefaults", "-display", "none"])
            .args(accelerators)
            .args(["-netdev", "hubport,id=n,hubid=0", "-device", &device])
            .args(["-qtest", &format!("unix:{}", socket.display())])
            .args(["-qtest-log", "none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let mut waiting = Waiting { child: Some(child), socket };
        let since = Instant::now();
        let stream = loop {
            if let Ok((stream, _)) = listener.accept() {
                break stream;
            }
            let child = waiting.child.as_mut().expect("it runs");
            if child.try_wait().map_err(|error| error.to_string())?.is_some() {
                return Err(format!("{program} has no {card} behind qtest"));
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("{program} does not come"));
            }
            std::thread::yield_now();
        };
        stream.set_nonblocking(false).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let (child, socket) = (waiting.child.take().expect("it runs"), waiting.socket.clone());
        let mut qemu =
            Self { child, socket, stream: BufReader::new(stream), bars: [(0, false); 6] };
        qemu.place();
        Ok(qemu)
    }

    /// Sends one command. Returns what follows "OK" in the reply.
    fn ask(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\n").as_bytes()).expect("qtest hears");
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("qtest answers");
            assert!(!line.is_empty(), "QEMU has ended after {command}");
            if let Some(answer) = line.strip_prefix("OK") {
                return answer.trim().to_owned();
            }
            assert!(line.starts_with("IRQ"), "{command}: {line}");
        }
    }

    fn number(&mut self, command: &str) -> u64 {
        let answer = self.ask(command);
        u64::from_str_radix(answer.trim_start_matches("0x"), 16).expect("a number")
    }

    pub fn config_read(&mut self, at: u32) -> u32 {
        self.ask(&format!("outl 0xcf8 {:#x}", 0x8000_0000 | SLOT << 11 | at & 0xfc));
        self.number("inl 0xcfc") as u32
    }

    fn config_write(&mut self, at: u32, value: u32) {
        self.ask(&format!("outl 0xcf8 {:#x}", 0x8000_0000 | SLOT << 11 | at & 0xfc));
        self.ask(&format!("outl 0xcfc {value:#x}"));
    }

    /// The command for an access, chosen from those for I/O ports and for memory, and its address.
    fn access(&self, [io, memory]: [&str; 2], (bar, at): (usize, u64), width: usize) -> String {
        let (base, is_io) = self.bars[bar];
        let (verb, width) = (if is_io { io } else { memory }, ["b", "w", "l"][width / 2]);
        format!("{verb}{width} {:#x}", base + at)
    }

    /// Assigns the card's base address registers, and enables it.
    fn place(&mut self) {
        let (mut io, mut mem) = (IO, MEM);
        for bar in 0..6 {
            let at = 0x10 + 4 * bar;
            self.config_write(at, u32::MAX);
            let size = self.config_read(at);
            if size == 0 {
                continue;
            }
            let is_io = size & 1 == 1;
            let next = if is_io { &mut io } else { &mut mem };
            let address = *next;
            *next += if is_io { 0x100 } else { 0x10_0000 };
            self.config_write(at, address as u32);
            self.bars[bar as usize] = (address, is_io);
        }
        self.config_write(4, 7);
    }
}

/// Ends a process that did not become a machine.
struct Waiting {
    child: Option<Child>,
    socket: PathBuf,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Target for Qemu {
    fn read(&mut self, Space(bar): Space, at: u64, width: usize) -> u32 {
        let access = self.access(["in", "read"], (bar, at), width);
        self.number(&access) as u32
    }

    fn write(&mut self, Space(bar): Space, at: u64, width: usize, value: u32) {
        let access = self.access(["out", "write"], (bar, at), width);
        self.ask(&format!("{access} {value:#x}"));
    }

    fn store(&mut self, at: u32, bytes: &[u8]) {
        assert!(u64::from(at) + bytes.len() as u64 <= MEMORY);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.ask(&format!("write {at:#x} {:#x} 0x{hex}", bytes.len()));
    }

    fn load(&mut self, at: u32, len: u32) -> Vec<u8> {
        let answer = self.ask(&format!("read {at:#x} {len:#x}"));
        let hex = answer.trim_start_matches("0x").as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        hex.chunks(2).map(|pair| byte(pair).expect("hexadecimal")).collect()
    }

    fn pass(&mut self, nanos: u64) {
        self.ask(&format!("clock_step {nanos}"));
    }
}
