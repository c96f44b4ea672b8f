//! Runs the commands of a document by its table.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use harness::namespace::may_load_programs;
use harness::{Daemon, PATIENCE, program, root, skip};

use super::shell::Shell;
use super::step::{How, Place, Step};
use super::text::Command;

/// A daemon, and a shell whose programs use it.
pub struct Session {
    pub daemon: Daemon,
    shell: Shell,
    place: tempfile::TempDir,
    going: Vec<Going>,
    outputs: usize,
}

/// A command that goes on.
struct Going {
    command: String,
    process: i32,
    output: PathBuf,
}

impl Session {
    /// Starts a daemon, and a shell in a directory that has the documents' files in it; or returns
    /// why it cannot.
    fn start(place: Place, script: &str) -> Result<Self, &'static str> {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        // Guests are users of their own, and some run programs of this directory.
        std::fs::set_permissions(here, PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["docs", "examples", "python"] {
            symlink(root().join(name), here.join(name)).unwrap();
        }
        let bin = here.join("bin");
        std::fs::create_dir(&bin).unwrap();
        symlink(program(), bin.join("toklat")).unwrap();
        let shell = Shell::start(here, place == Place::Network)?;
        let start = here.join("daemon");
        std::fs::write(&start, format!("#!/bin/sh\nexec {} \"$@\"\n", shell.beside(program())))
            .unwrap();
        std::fs::set_permissions(&start, PermissionsExt::from_mode(0o755)).unwrap();
        let daemon = Daemon::start_from(&start);
        let mut session = Self { daemon, shell, place: directory, going: Vec::new(), outputs: 0 };
        session.prepare(place, script);
        Ok(session)
    }

    /// Makes what all documents take for granted, and what this one does.
    fn prepare(&mut self, place: Place, script: &str) {
        let (here, dir) = (self.place.path().display(), self.daemon.dir().display());
        let target = program().parent().unwrap().display();
        let variables = format!(
            "export TOKLAT_DIR={dir} PATH={here}/bin:$PATH:/usr/sbin:/sbin PLACE={here} TARGET={target}"
        );
        self.succeed(&variables);
        if place == Place::Network {
            self.succeed(
                "mount -t tmpfs none /run && mkdir /run/toklat /run/netns && ip link set lo up &&
                 mount --bind $TOKLAT_DIR /run/toklat && mkdir /run/toklat/peers",
            );
        }
        if !script.is_empty() {
            self.succeed(script);
        }
    }

    fn output(&mut self) -> PathBuf {
        self.outputs += 1;
        self.place.path().join(format!("output.{}", self.outputs))
    }

    /// Runs a command that must end well. Returns what it has printed.
    fn succeed(&mut self, command: &str) -> String {
        let output = self.output();
        // A fenced block is a script, which ends at the first command that fails; and the shell
        // with it.
        let script = match command.ends_with('\n') {
            true => format!("set -e\n{command}set +e"),
            false => command.to_owned(),
        };
        let status = self.shell.run(&script, &output);
        let said = read(&output);
        assert_eq!(status, Ok(0), "{command}\n{said}\n{}", self.daemon.log());
        said
    }

    /// Starts a command that goes on, and waits until another one succeeds.
    fn go_on(&mut self, command: &str, until: &str) {
        let output = self.output();
        let command = command.trim_end().trim_end_matches('&');
        let process = self.shell.start_command(command, &output).expect(command);
        let until = format!("OUT={}; {until}", output.display());
        let (asked, started) = (self.output(), Instant::now());
        while self.shell.run(&until, &asked) != Ok(0) {
            let goes_on = self.shell.has(process) && started.elapsed() < PATIENCE;
            assert!(goes_on, "{command}\n{}\n{until}\n{}", read(&output), read(&asked));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.going.push(Going { command: command.to_owned(), process, output });
    }

    /// Interrupts what goes on, as a terminal does, the last first: a capture ends with an error if
    /// the port that it watches is closed.
    fn interrupt(&mut self) {
        for Going { command, process, output } in std::mem::take(&mut self.going).into_iter().rev()
        {
            let status = self.shell.interrupt(process).expect(&command);
            // A sink that checks sequence numbers fails if it misses frames. It may miss some: its
            // port is not lossless. 130 is what the shell calls an interrupt.
            let good = matches!(status, 0 | 130) || command.contains(" sink ") && status == 1;
            assert!(good, "{command}: {status}\n{}", read(&output));
        }
    }

    fn show_in_terminal(&mut self, command: &str, text: &str) {
        let words: Vec<_> =
            command.split(" #").next().unwrap().split_whitespace().skip(1).collect();
        let mut terminal = self.daemon.in_terminal(&words, 100, 30);
        terminal.wait_for(text);
        terminal.press(b"q");
        assert_eq!(terminal.end(), Some(0), "{command}");
    }

    /// The first of these needs that this machine does not have.
    fn lacks(&mut self, needs: &[&'static str]) -> Option<&'static str> {
        let output = self.output();
        let is_missing = |need: &&&str| match **need {
            "CAP_BPF" => !may_load_programs(),
            program => self.shell.run(&format!("command -v {program}"), &output) != Ok(0),
        };
        needs.iter().find(is_missing).copied()
    }

    /// Does what the table says of a command.
    fn take(&mut self, step: &Step, text: &str) {
        match step.how {
            How::Ends => drop(self.succeed(text)),
            How::Shows(shown) => {
                let said = self.succeed(text);
                assert!(said.contains(shown), "{text}: no {shown:?} in {said}");
            }
            How::GoesOn(meanwhile) => self.go_on(text, meanwhile),
            How::Terminal(shown) => self.show_in_terminal(text, shown),
            How::File(name) => {
                let path = self.place.path().join(name);
                let before = std::fs::read_to_string(&path).unwrap_or_default();
                std::fs::write(path, before + text + "\n").unwrap();
            }
            How::Test(why) | How::Cannot(why) => {
                eprintln!("  is not run here: {why}");
                if let Some(command) = with_help(text) {
                    let said = self.succeed(&command);
                    assert!(said.contains("Usage: "), "{command}: {said}");
                }
            }
            How::Meanwhile(command) => drop(self.succeed(command)),
            How::Interrupt => self.interrupt(),
            How::Not(what) => eprintln!("  is {what}"),
            How::Daemon | How::Place(..) => {}
        }
    }
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
}

/// A command of `toklat` that asks for help at its end: options and values before that are checked,
/// and nothing is done. Other commands are not asked.
fn with_help(text: &str) -> Option<String> {
    let own =
        [" #", " | ", " -- ", " &"].iter().fold(text, |text, end| text.split(end).next().unwrap());
    let is_ours = own.split(' ').find(|word| !word.contains('=')) == Some("toklat");
    is_ours.then(|| format!("{own} --help"))
}

/// Runs the commands of a document, each with its step. Returns the last daemon, and what goes on;
/// nothing if the test is skipped.
pub fn run(test: &str, document: &str, steps: &[(Step, Option<Command>)]) -> Option<Session> {
    let mut session = None;
    for (step, command) in steps {
        if let How::Place(place, script) = step.how {
            // The last one ends first: both may want the same things of the machine.
            drop(session.take());
            match Session::start(place, script) {
                Ok(started) => session = Some(started),
                Err(why) => {
                    skip(test, why);
                    return None;
                }
            }
            continue;
        }
        let session = session.as_mut().expect("a table begins with a place");
        let (line, text) = command.as_ref().map_or((0, ""), |c| (c.line, c.text.as_str()));
        if let Some(missing) = session.lacks(step.needs) {
            skip(test, &format!("{missing} is missing, for line {line} of {document}"));
            continue;
        }
        let text = step.with.iter().fold(text.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{document}:{line}: {from} is not in {text}");
            text.replace(from, to)
        });
        eprintln!("{document}:{line}: {text}");
        session.take(step, &text);
    }
    session
}
