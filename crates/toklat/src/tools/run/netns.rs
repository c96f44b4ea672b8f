//! `toklat run --netns`: a program in a network namespace of its own, whose taps are ports.
//!
//! This process makes the namespace (without root, inside a user namespace), makes a tap for each
//! port, and starts the program. It forwards frames between taps and ports until the program ends.
#![allow(unsafe_code, reason = "unshare changes what this process is in")]

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use host::tap::{Field, ifreq_ioctl, open_queue};
use netring::layout::MAX_FRAGS;
use netring::{Interest, Open, Port};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::UnshareFlags;

use crate::tools::session::stop_on_signals;
use client::Result;

/// The virtio-net header of a tap's frames. All zero: it requests no offload.
const HEADER: [u8; 10] = [0; 10];
/// Bytes of a tap's frame.
const LONGEST: usize = 65_536;
/// The maximum number of frames forwarded before the other ports have their turn.
const BURST: usize = 64;
/// Characters of an interface's name.
const NAME: usize = 15;

/// A tap, and the port behind it.
struct Link {
    tap: OwnedFd,
    port: Port,
}

/// Runs a program until it ends; exits with the same status.
pub fn run(name: &OsStr, arguments: &[OsString], ports: &[String], directory: &Path) -> Result {
    let own = [format!("vale0:run{}", std::process::id())];
    let ports = if ports.is_empty() { &own[..] } else { ports };
    // The daemon connection is made before entering the namespace: the daemon knows this user, not
    // the one inside.
    let opened = ports.iter().map(|port| open(port, directory)).collect::<Result<Vec<_>>>()?;
    enter_namespaces()?;
    bring_up("lo", None)?;
    let links = opened.into_iter().map(|(name, port, address)| {
        let interface = interface(&name)?;
        let made = open_queue(&interface, false);
        let tap = made.with_context(|| format!("Cannot make the tap {interface}"))?;
        bring_up(&interface, address)?;
        Ok(Link { tap, port })
    });
    let mut links = links.collect::<Result<Vec<_>>>()?;
    let stop = stop_on_signals()?;
    let mut command = Command::new(name);
    command.args(arguments).env("TOKLAT_DIR", directory);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(())
        })
    };
    let program = Path::new(name).display();
    let mut child = command.spawn().with_context(|| format!("Cannot run {program}"))?;
    let status = carry(&mut links, &mut child, &stop)?;
    drop(links);
    std::process::exit(code(status));
}

/// The exit code that a shell would report.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

type Opened = (String, Port, Option<(Ipv4Addr, u32)>);

/// Opens `vale0:p1=10.0.0.1/24`.
fn open(port: &str, directory: &Path) -> Result<Opened> {
    let (name, address) = port.split_once('=').unwrap_or((port, ""));
    let (address, bits) = address.split_once('/').unwrap_or((address, "32"));
    let address = address.parse().ok().zip(bits.parse().ok());
    let opened = Open::new(name).unlimited().directory(directory).open();
    let port = opened.with_context(|| format!("Cannot open {name}"))?;
    Ok((name.to_owned(), port, address))
}

/// The tap's name: the port's, without the colon.
fn interface(port: &str) -> Result<String> {
    let name = port.replacen(':', ".", 1);
    if name.len() > NAME || name.contains('/') {
        return Err(anyhow!(
            "{name} is not an interface name: it has at most {NAME} characters; use a shorter port"
        ));
    }
    Ok(name)
}

/// Enters a new network namespace. Without root it also enters a user namespace, with this user as
/// its root.
fn enter_namespaces() -> Result {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let is_root = rustix::process::geteuid().is_root();
    let user = if is_root { UnshareFlags::empty() } else { UnshareFlags::NEWUSER };
    // SAFETY: this process has one thread, and no socket that is to be in the namespace it leaves.
    unsafe { rustix::thread::unshare_unsafe(user | UnshareFlags::NEWNET) }.context(
        "Cannot make a network namespace; user namespaces may be switched off here \
         (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces)",
    )?;
    if is_root {
        return Ok(());
    }
    let write = |file: &str, text: String| {
        let path = Path::new("/proc/self").join(file);
        std::fs::write(&path, text).with_context(|| format!("Cannot write {}", path.display()))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {uid} 1"))?;
    write("gid_map", format!("0 {gid} 1"))
}

/// Gives an interface its address, and brings it up.
fn bring_up(interface: &str, address: Option<(Ipv4Addr, u32)>) -> Result {
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
    let set = |request, field| {
        let socket = rustix::net::socket(family, kind, None)?;
        ifreq_ioctl(&socket, request, interface, field)
    };
    let all = || -> io::Result<()> {
        if let Some((address, bits)) = address {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            set(libc::SIOCSIFADDR, Field::Address(address))?;
            set(libc::SIOCSIFNETMASK, Field::Address(mask.into()))?;
        }
        let up = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        set(libc::SIOCSIFFLAGS, Field::Flags(up))
    };
    all().with_context(|| format!("Cannot bring {interface} up"))
}

/// Forwards frames until the program ends.
fn carry(links: &mut [Link], child: &mut Child, stop: &AtomicBool) -> Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let mut frame = vec![0; LONGEST];
    loop {
        if let Some(status) = child.try_wait()? {
            // The program's last frames are in the taps, and then in the rings.
            for link in &mut *links {
                while link.send(&mut frame)? {}
                link.finish();
            }
            return Ok(status);
        }
        if stop.swap(false, Ordering::Relaxed) {
            // The terminal may have signalled the program as well.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let mut moved = false;
        for link in &mut *links {
            moved |= link.send(&mut frame)?;
            moved |= link.receive(&mut frame)?;
        }
        if !moved {
            sleep(links, &ended)?;
        }
    }
}

/// Sleeps until a tap, a port or the program is ready.
fn sleep(links: &mut [Link], ended: &OwnedFd) -> Result {
    let mut ready = false;
    for link in &mut *links {
        ready |= link.port.arm(Interest::READ).readable;
    }
    if !ready {
        let mut fds = vec![PollFd::new(ended, PollFlags::IN)];
        for link in &*links {
            fds.push(PollFd::new(&link.tap, PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(link.port.as_fd(), PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(errno) => return Err(errno.into()),
        }
    }
    for link in &mut *links {
        link.port.disarm()?;
    }
    Ok(())
}

impl Link {
    /// Forwards frames from the tap to the port; returns true if there were any.
    fn send(&mut self, frame: &mut [u8]) -> Result<bool> {
        let mut any = false;
        for _ in 0..BURST {
            if self.port.send(MAX_FRAGS).room() < MAX_FRAGS {
                // The switch is behind, so the frames wait in the tap.
                self.port.wait(Interest::WRITE, Some(Duration::from_millis(1)))?;
                break;
            }
            match rustix::io::read(&self.tap, &mut *frame) {
                Ok(len) if len > HEADER.len() => {
                    any = true;
                    self.port.send(MAX_FRAGS).push(&frame[HEADER.len()..len]);
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.port.flush()?;
        Ok(any)
    }

    /// Forwards frames from the port to the tap; returns true if there were any.
    fn receive(&mut self, frame: &mut [u8]) -> Result<bool> {
        let mut any = false;
        for received in self.port.receive(BURST) {
            any = true;
            let (head, rest) = frame.split_at_mut(HEADER.len());
            head.copy_from_slice(&HEADER);
            let len = HEADER.len() + received.copy_out(rest);
            // If the tap is full or down, the frame is lost.
            let _ = rustix::io::write(&self.tap, &frame[..len]);
        }
        self.port.flush()?;
        Ok(any)
    }

    /// Flushes the ring to the switch.
    fn finish(&mut self) {
        for _ in 0..200 {
            let slots = self.port.slots().0.saturating_sub(1);
            if self.port.flush().is_err() || self.port.send(usize::MAX).room() >= slots {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
