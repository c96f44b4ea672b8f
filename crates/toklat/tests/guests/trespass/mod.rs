//! A guest's program that tries what a guest may not do. It is this test's own executable, which
//! takes this way before the test harness starts if a manager has started it.
#![allow(unsafe_code, reason = "system calls as an intruder makes them")]

use std::io::Write;

use guest::{Guest, Host, RingNic, Stack};

pub mod early;

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn before_main() {
        if std::env::var_os(jail::cell::VARIABLE).is_none() {
            return;
        }
        let host = Host::from_env().unwrap();
        let what = host.args().first().cloned().unwrap_or_default();
        early::act(&what);
        if what == "linger" {
            loop {
                std::thread::park();
            }
        }
        let result = host.run(|stack| act(&what, stack));
        if let Err(error) = &result {
            eprintln!("{error}");
        }
        std::process::exit(i32::from(result.is_err()));
    }
    before_main
};

/// What a guest in its sandbox is told to do, and the system call that ends it.
pub const FORBIDDEN: [(&str, &str); 24] = [
    ("open", "openat"),
    ("socket", "socket"),
    ("execve", "execve"),
    ("fork", "clone"),
    ("thread", "rt_sigaction"),
    ("ptrace", "ptrace"),
    ("mount", "mount"),
    ("unshare", "unshare"),
    ("kill", "kill"),
    ("handler", "rt_sigaction"),
    ("mask", "rt_sigprocmask"),
    ("executable", "mmap"),
    ("file", "mmap"),
    ("make executable", "mprotect"),
    ("ioctl", "ioctl"),
    ("sendmsg", "sendmsg"),
    ("uring", "io_uring_setup"),
    ("bpf", "bpf"),
    ("keys", "keyctl"),
    ("limits", "prlimit64"),
    ("memfd", "memfd_create"),
    ("write elsewhere", "write"),
    ("filter", "seccomp"),
    ("user", "setuid"),
];

fn act(what: &str, stack: Stack<RingNic>) -> Result<(), Box<dyn std::error::Error>> {
    match what {
        "flood" => loop {
            std::io::stdout().write_all(&[b'x'; 4096])?;
        },
        "babble" => loop {
            jail_report(b"U");
        },
        "lie" => {
            jail_report(b"\xffgarbage");
            serve(stack)
        }
        "spin" => loop {
            std::hint::spin_loop();
        },
        "eat" => eat(),
        "eat when told" => {
            let mut stack = stack;
            let (socket, started) = (stack.udp_bind(9)?, std::time::Instant::now());
            while stack.udp_receive(socket).is_none() {
                stack.poll(guest::Nanos(1 + started.elapsed().as_nanos() as u64))?;
            }
            eat()
        }
        "panic" => panic!("as it was told to"),
        "serve" | early::ALL | early::LIE | early::NONE => serve(stack),
        "deluge" => deluge(stack),
        what => {
            trespass(what);
            println!("{what} was not forbidden");
            serve(stack)
        }
    }
}

fn eat() -> ! {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(vec![1; 1 << 20]);
    }
}

fn serve(stack: Stack<RingNic>) -> Result<(), Box<dyn std::error::Error>> {
    let mut site = guest::apps::site::Site::default();
    site.add("/1k", vec![b'x'; 1024].into());
    let mut guest = Guest::new(stack, site);
    guest.listen(80, 64)?;
    Ok(guest.run(|_| false)?)
}

/// Sends datagrams to 10.0.0.1 as fast as it can.
fn deluge(mut stack: Stack<RingNic>) -> Result<(), Box<dyn std::error::Error>> {
    let socket = stack.udp_bind(9)?;
    let to = std::net::SocketAddrV4::new([10, 0, 0, 1].into(), 9);
    let started = std::time::Instant::now();
    loop {
        let now = guest::Nanos(guest::Nanos::SECOND) + started.elapsed().as_nanos() as u64;
        for _ in 0..64 {
            // The program is meant to fill the ring.
            let _ = stack.udp_send(socket, to, &[7; 1400], now);
        }
        stack.poll(now)?;
    }
}

/// The number of the socket to the manager.
fn control() -> i32 {
    let value = std::env::var(jail::cell::VARIABLE).unwrap();
    value.split(':').next().unwrap().parse().unwrap()
}

fn jail_report(bytes: &[u8]) {
    // SAFETY: the bytes exist.
    unsafe { libc::send(control(), bytes.as_ptr().cast(), bytes.len(), 0) };
}

fn trespass(what: &str) {
    let call = |number, a: usize, b: usize, c: usize, d: usize| {
        // SAFETY: none of these calls is carried out.
        unsafe { libc::syscall(number, a, b, c, d, usize::MAX, 0) }
    };
    let path = c"/etc/passwd".as_ptr() as usize;
    match what {
        "open" => drop(std::fs::File::open("/etc/passwd")),
        "socket" => drop(std::net::TcpStream::connect("127.0.0.1:1")),
        "execve" => {
            call(libc::SYS_execve, c"/bin/sh".as_ptr() as usize, 0, 0, 0);
        }
        "fork" => {
            call(libc::SYS_clone, libc::SIGCHLD as usize, 0, 0, 0);
        }
        "thread" => drop(std::thread::Builder::new().spawn(|| ())),
        "ptrace" => {
            call(libc::SYS_ptrace, libc::PTRACE_TRACEME as usize, 0, 0, 0);
        }
        "mount" => {
            call(libc::SYS_mount, path, path, path, 0);
        }
        "unshare" => {
            call(libc::SYS_unshare, libc::CLONE_NEWUSER as usize, 0, 0, 0);
        }
        "kill" => {
            call(libc::SYS_kill, usize::MAX, libc::SIGKILL as usize, 0, 0);
        }
        "handler" => {
            call(libc::SYS_rt_sigaction, libc::SIGSYS as usize, 0, 0, 8);
        }
        "mask" => {
            call(libc::SYS_rt_sigprocmask, 0, 0, 0, 8);
        }
        "executable" => map(libc::PROT_READ | libc::PROT_EXEC, libc::MAP_ANONYMOUS, -1),
        "file" => map(libc::PROT_READ, 0, control()),
        "make executable" => {
            let page = what.as_ptr() as usize & !4095;
            call(libc::SYS_mprotect, page, 4096, libc::PROT_EXEC as usize, 0);
        }
        "ioctl" => {
            call(libc::SYS_ioctl, 1, 0x5401, 0, 0);
        }
        "sendmsg" => {
            call(libc::SYS_sendmsg, control() as usize, 0, 0, 0);
        }
        "uring" => {
            call(libc::SYS_io_uring_setup, 1, 0, 0, 0);
        }
        "bpf" => {
            call(libc::SYS_bpf, 0, 0, 0, 0);
        }
        "keys" => {
            call(libc::SYS_keyctl, 0, 0, 0, 0);
        }
        "limits" => {
            call(libc::SYS_prlimit64, 0, 0, 0, 0);
        }
        "memfd" => {
            call(libc::SYS_memfd_create, path, 0, 0, 0);
        }
        "write elsewhere" => {
            call(libc::SYS_write, control() as usize, path, 1, 0);
        }
        "filter" => {
            call(libc::SYS_seccomp, 0, 0, 0, 0);
        }
        "user" => {
            call(libc::SYS_setuid, 0, 0, 0, 0);
        }
        other => panic!("what is {other}?"),
    }
}

fn map(protection: i32, flags: i32, fd: i32) {
    let flags = flags | libc::MAP_PRIVATE;
    // SAFETY: a new mapping, which is not used.
    unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, fd, 0) };
}
