//! Expressions of rules are compiled in a process of their own: a flaw of libpcap, or an expression
//! made for one, reaches nothing.
//!
//! It reads an expression a line, loads the library, and gives up all system calls but writing. It
//! answers each with a line: `+` and the program in numbers, or `-` and what is wrong. What ends it
//! has no answer.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use frame::bpf::Program;
use jail::child::{ChildSetup, Confinement, Supervised};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{Library, is_program};

/// The command that the daemon starts.
const COMMAND: &str = "expression-process";
/// Seconds of computing.
const SECONDS: u64 = 2;
/// Bytes of addresses, the program itself included.
const MEMORY: u64 = 1 << 30;
/// The most bytes of answers that are read.
const ANSWERS: u64 = 16 << 20;

/// An expression that is none.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Wrong {
    /// The expression.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// Compiles expressions, in a confined child of the program `exe`. Numbers need no child.
///
/// # Errors
/// Names the first wrong one.
pub fn compile_all(exe: &Path, texts: &[String]) -> Result<BTreeMap<String, Program>, Wrong> {
    let wrong = |text: &String, why: String| Wrong { text: text.clone(), why };
    let (mut programs, mut asked) = (BTreeMap::new(), Vec::new());
    for text in texts {
        if is_program(text) {
            let program = text.parse().map_err(|e| wrong(text, format!("{e}")))?;
            programs.insert(text.clone(), program);
        } else {
            asked.push(text);
        }
    }
    let Some(first) = asked.first() else { return Ok(programs) };
    let answers = ask(exe, &asked).map_err(|e| wrong(first, format!("cannot compile it: {e}")))?;
    let mut answers = answers.lines();
    for text in asked {
        let program = match answers.next().map(|line| line.split_at_checked(1)) {
            Some(Some(("+", numbers))) => numbers.parse().map_err(|e| wrong(text, format!("{e}"))),
            Some(Some((_, why))) => Err(wrong(text, why.to_owned())),
            _ => Err(wrong(text, "it takes too long, or names something: use numbers".into())),
        };
        programs.insert(text.clone(), program?);
    }
    Ok(programs)
}

/// What the child answers.
fn ask(exe: &Path, texts: &[&String]) -> io::Result<String> {
    let mut command = Command::new(exe);
    command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let walls = Confinement::new().in_namespaces(true).without_capabilities().with_calls(false);
    let setup = ChildSetup::new().with_descriptors(64);
    let (child, pipes, _) = Supervised::start_confined(&mut command, &setup, walls)?;
    let child = child.ending_with_this();
    let mut lines = String::new();
    for text in texts {
        // A line end is a blank in an expression, too.
        lines.push_str(&text.replace(['\n', '\r', '\0'], " "));
        lines.push('\n');
    }
    if let Some(mut stdin) = pipes.stdin {
        // What a child that has ended does not read, it does not answer.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let mut answers = Vec::new();
    if let Some(stdout) = pipes.stdout {
        stdout.take(ANSWERS).read_to_end(&mut answers)?;
    }
    child.kill();
    child.wait()?;
    Ok(String::from_utf8_lossy(&answers).into_owned())
}

/// The child: compiles what its standard input says.
///
/// # Errors
/// It cannot be confined, or cannot write.
pub fn run() -> io::Result<()> {
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Cpu, limit(SECONDS))?;
    setrlimit(Resource::As, limit(MEMORY))?;
    let texts = io::read_to_string(io::stdin().lock())?;
    let library = Library::open();
    let mut out = io::stdout().lock();
    // From here on, this process computes and writes to its standard output.
    jail::calls::kill_others(&[(libc::SYS_write, Some((0, 1)))])?;
    for text in texts.lines() {
        let compiled = library.as_ref().map_err(ToString::to_string).and_then(|library| {
            let code = library.compile(text).map_err(|e| e.to_string())?;
            Program::new(code).map_err(|e| e.to_string())
        });
        match compiled {
            Ok(program) => writeln!(out, "+{}", numbers(&program))?,
            Err(why) => writeln!(out, "-{}", why.replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}

/// A program in numbers, with commas.
fn numbers(program: &Program) -> String {
    let code = program.instructions();
    let lines = code.iter().map(|i| format!(",{} {} {} {}", i.code, i.jt, i.jf, i.k));
    format!("{}{}", code.len(), lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_the_numbers_that_it_is_read_from() {
        let text = "4,40 0 0 12,21 0 1 2054,6 0 0 262144,6 0 0 0";
        let program: Program = text.parse().unwrap();
        assert_eq!(numbers(&program), text);
    }
}
