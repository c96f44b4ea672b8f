//! What a guest's program tries before it is sealed.

use std::io::Write;
use std::path::Path;

/// Tries everything, and prints what worked.
pub const ALL: &str = "before";
/// The program of a copy says that another process is the copy.
pub const LIE: &str = "names another";
/// The program says that a copy is there, and makes none.
pub const NONE: &str = "makes no copy";

pub fn act(what: &str) {
    match what {
        ALL => println!("early: {}", tried()),
        LIE => lie(&mut |victim| {
            super::jail_report(&[&b"C"[..], &victim.to_le_bytes()].concat());
        }),
        NONE => lie(&mut |_| super::jail_report(b"C")),
        _ => {}
    }
}

/// Plays the part of a program that is copied, for as long as there are orders.
fn lie(answer: &mut dyn FnMut(u32)) -> ! {
    super::jail_report(b"L");
    loop {
        let mut bytes = [0; 4096];
        // SAFETY: the bytes exist. Descriptors are not asked for.
        let len =
            unsafe { libc::recv(super::control(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if len <= 0 {
            std::process::exit(1);
        }
        let victim = std::fs::read_to_string(victim_file()).ok();
        answer(victim.and_then(|victim| victim.trim().parse().ok()).unwrap_or(0));
    }
}

/// The file with the number of the guest that the liar names.
fn victim_file() -> String {
    std::env::args().nth(2).unwrap_or_default()
}

fn tried() -> String {
    let call = |number, a: i64, b: i64, c: i64| {
        // SAFETY: the calls fail, or make a descriptor or a namespace for this process alone.
        let done = unsafe { libc::syscall(number, a, b, c, 0, 0, 0) };
        if done >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
    };
    let uring = {
        let mut parameters = [0u8; 256];
        call(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr() as i64, 0)
    };
    let packet = call(libc::SYS_socket, libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0x300);
    let unix = call(libc::SYS_socket, libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), 0);
    let namespace = in_a_child(|| call(libc::SYS_unshare, libc::CLONE_NEWUSER.into(), 0, 0));
    let mount = {
        let flags = i64::from(libc::MS_REMOUNT as i32 | libc::MS_BIND as i32);
        // SAFETY: the texts end with zero.
        let done =
            unsafe { libc::syscall(libc::SYS_mount, c"none".as_ptr(), c"/".as_ptr(), 0, flags, 0) };
        if done >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
    };
    let (bytes, forks) = (written(), forked());
    format!(
        "uring={uring} packet={packet} unix={unix} namespace={namespace} remount={mount} \
         bytes={bytes} forks={forks} end"
    )
}

/// Does something in a child, because a program that leaves its namespace cannot serve.
fn in_a_child(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the call does not return.
        unsafe { libc::_exit(act()) };
    }
    let mut status = 0;
    // SAFETY: the number is that of a child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    libc::WEXITSTATUS(status)
}

/// Writes files wherever it can, up to 300 MiB; returns how many bytes.
fn written() -> usize {
    // A file beyond the limit would end the process.
    // SAFETY: the signal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut written = 0;
    for dir in ["/tmp", "/var/tmp", "/dev/shm", "/run", ".", "/"] {
        for number in 0..300 {
            let path = Path::new(dir).join(format!("toklat-early-{}-{number}", std::process::id()));
            let Ok(mut file) = std::fs::File::create(&path) else { break };
            while written < 300 << 20 && file.write_all(&[7; 1 << 16]).is_ok() {
                written += 1 << 16;
            }
        }
        for number in 0..300 {
            let name = format!("toklat-early-{}-{number}", std::process::id());
            let _ = std::fs::remove_file(Path::new(dir).join(name));
        }
    }
    written
}

/// Starts processes that wait, up to 1,000; ends them, and returns how many there were.
fn forked() -> usize {
    let mut children = Vec::new();
    while children.len() < 1000 {
        // SAFETY: this process has one thread, and the child only waits.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: it waits for a signal.
                unsafe { libc::pause() };
            },
            -1 => break,
            pid => children.push(pid),
        }
    }
    for pid in &children {
        // SAFETY: these are children that were not waited for.
        unsafe {
            libc::kill(*pid, libc::SIGKILL);
            libc::waitpid(*pid, std::ptr::null_mut(), 0);
        }
    }
    children.len()
}
