//! What is done with each command of a document.

/// A command of a document, or something that a test does between two of them.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How the command begins; nothing for what is not in the document.
    pub start: &'static str,
    /// What is done with it.
    pub how: How,
    /// The rest of its block is its output, or belongs to it.
    pub whole: bool,
    /// What is another here than in the document: text, and what takes its place.
    pub with: &'static [(&'static str, &'static str)],
    /// Programs, or `CAP_BPF`, without which it is left out.
    pub needs: &'static [&'static str],
}

/// What is done with a command.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// It ends well.
    Ends,
    /// It ends well, and prints this.
    Shows(&'static str),
    /// It goes on until it is interrupted, and this command succeeds meanwhile. `$OUT` is the file
    /// of its output.
    GoesOn(&'static str),
    /// It shows this on a terminal, and ends at the key q.
    Terminal(&'static str),
    /// It is how the test started its daemon.
    Daemon,
    /// It is a part of a file, which the test writes.
    File(&'static str),
    /// A test of this name runs it.
    Test(&'static str),
    /// It cannot be run here, for this reason.
    Cannot(&'static str),
    /// It is no command, but this.
    Not(&'static str),
    /// Not in the document: a new daemon in a directory of its own, or in a network of its own; and
    /// a script that makes there what the document takes for granted.
    Place(Place, &'static str),
    /// Not in the document: a command that must succeed.
    Meanwhile(&'static str),
    /// Not in the document: what goes on is interrupted, and must end well.
    Interrupt,
}

/// Where commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a directory of their own.
    Directory,
    /// There, in a network namespace with a `/run` of its own.
    Network,
}

impl Step {
    /// With this in place of what the document says.
    pub const fn with(mut self, with: &'static [(&'static str, &'static str)]) -> Self {
        self.with = with;
        self
    }

    /// Only where there are these programs, and rights.
    pub const fn needs(mut self, needs: &'static [&'static str]) -> Self {
        self.needs = needs;
        self
    }

    /// Together with the rest of its block.
    pub const fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// True for what is not in the document.
    pub const fn is_own(&self) -> bool {
        matches!(self.how, How::Place(..) | How::Meanwhile(_) | How::Interrupt)
    }
}

const fn step(start: &'static str, how: How) -> Step {
    Step { start, how, whole: false, with: &[], needs: &[] }
}

pub const fn ends(start: &'static str) -> Step {
    step(start, How::Ends)
}

pub const fn shows(start: &'static str, text: &'static str) -> Step {
    step(start, How::Shows(text))
}

pub const fn goes_on(start: &'static str, meanwhile: &'static str) -> Step {
    step(start, How::GoesOn(meanwhile))
}

pub const fn terminal(start: &'static str, text: &'static str) -> Step {
    step(start, How::Terminal(text))
}

pub const fn daemon(start: &'static str) -> Step {
    step(start, How::Daemon)
}

pub const fn file(start: &'static str, name: &'static str) -> Step {
    step(start, How::File(name)).whole()
}

pub const fn test(start: &'static str, name: &'static str) -> Step {
    step(start, How::Test(name))
}

pub const fn cannot(start: &'static str, why: &'static str) -> Step {
    step(start, How::Cannot(why))
}

pub const fn not(start: &'static str, what: &'static str) -> Step {
    step(start, How::Not(what)).whole()
}

pub const fn place(place: Place, script: &'static str) -> Step {
    step("", How::Place(place, script))
}

pub const fn meanwhile(command: &'static str) -> Step {
    step("", How::Meanwhile(command))
}

pub const fn interrupt() -> Step {
    step("", How::Interrupt)
}
