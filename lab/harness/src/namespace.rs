//! A network namespace of a test's own.

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::LinkNameSpaceType;

/// A network namespace that lives as long as its process.
pub struct Namespace(Child);

impl Namespace {
    /// Makes a namespace, or returns the reason why taps cannot be tested here.
    pub fn new() -> Result<Self, &'static str> {
        for program in ["ip", "unshare", "nsenter"] {
            if Command::new(program).arg("-V").output().is_err() {
                return Err("ip (iproute2), unshare or nsenter (util-linux) is missing");
            }
        }
        // The namespace's process answers when it has entered, and has seen that it may make a tap
        // there.
        let script = "ip tuntap add probe mode tap && ip link del probe && echo && read end";
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let namespace = Self(child);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        match line.is_empty() {
            true => Err("network namespaces (CAP_SYS_ADMIN) or taps (CAP_NET_ADMIN) are refused"),
            false => Ok(namespace),
        }
    }

    /// The process id that keeps the namespace alive.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// A command for a program that runs in the namespace.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.id().to_string(), "-n"]).args(args);
        command
    }

    /// Runs a program in the namespace, and returns its output.
    pub fn run(&self, args: &[&str]) -> String {
        String::from_utf8(self.command(args).output().unwrap().stdout).unwrap()
    }

    /// Calls `f` in the namespace. Sockets created by `f` stay in it.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.id())).unwrap();
        let enter = || {
            let kind = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            f()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True if the kernel accepts BPF programs. In a user namespace it does not.
pub fn may_load_programs() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").unwrap().trim_end().ends_with(" 4294967295")
}
