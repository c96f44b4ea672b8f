//! A shell that runs a document's commands one after another, as a reader's does: directories,
//! variables and functions stay.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use harness::PATIENCE;
use harness::namespace::Namespace;

pub struct Shell {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    /// The network that it is in.
    network: Option<Namespace>,
}

/// What the shell said of a command that has ended, or of one that it has started.
type Answer = Result<i32, String>;

impl Shell {
    /// Starts one in a directory; with `network`, in a network namespace, with mounts of its own.
    /// Otherwise returns why there can be no namespace here.
    pub fn start(directory: &Path, network: bool) -> Result<Self, &'static str> {
        let network = network.then(Namespace::new).transpose()?;
        let mut command = match &network {
            Some(network) => {
                network.command(&["unshare", "--mount", "--propagation", "private", "bash"])
            }
            None => Command::new("bash"),
        };
        command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("bash");
        let (sender, answers) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let input = child.stdin.take().unwrap();
        let mut shell = Self { child, input, answers, network };
        // Programs in the background get groups of their own, which a terminal could interrupt.
        assert_eq!(shell.ask("set -m\necho $?"), Ok(0));
        Ok(shell)
    }

    /// A command that runs a program with the shell's namespaces.
    pub fn beside(&self, program: &Path) -> String {
        match &self.network {
            Some(_) => format!("nsenter -t {} -n -m {}", self.child.id(), program.display()),
            None => program.display().to_string(),
        }
    }

    fn ask(&mut self, script: &str) -> Answer {
        writeln!(self.input, "{script}").map_err(|error| error.to_string())?;
        let answer = self.answers.recv_timeout(PATIENCE).map_err(|error| error.to_string())?;
        answer.parse().map_err(|_| answer)
    }

    /// Runs a command to its end, with its output in a file. Returns its status.
    pub fn run(&mut self, command: &str, output: &Path) -> Answer {
        self.ask(&format!("{{ {command}\n}} >{} 2>&1 </dev/null; echo $?", output.display()))
    }

    /// Starts a command. Returns the number of its process.
    pub fn start_command(&mut self, command: &str, output: &Path) -> Answer {
        self.ask(&format!("{{ {command}\n}} >{} 2>&1 </dev/null & echo $!", output.display()))
    }

    /// Interrupts a command that goes on, as a terminal does. Returns its status.
    pub fn interrupt(&mut self, process: i32) -> Answer {
        self.ask(&format!("kill -INT -- -{process}; wait {process}; echo $?"))
    }

    /// True while a command that was started goes on.
    pub fn has(&mut self, process: i32) -> bool {
        self.ask(&format!("kill -0 -- -{process} 2>/dev/null; echo $?")) == Ok(0)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
