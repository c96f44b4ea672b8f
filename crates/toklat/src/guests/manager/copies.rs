//! Guests that are copies of one process, which has loaded their program.

use std::os::fd::AsFd;
use std::time::Instant;

use jail::cell::Report;
use jail::child::Supervised;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::{BOOT, Due, Manager, What, listen};
use crate::guests::groups::Member;
use crate::guests::kind::{MAX_COPYING, Ports};
use crate::guests::log;
use crate::guests::process::{self, End, Process, Said};
use crate::guests::unit::{State, Unit};

impl Manager {
    /// Orders copies for the guests that wait for them.
    pub(super) fn copy(&mut self, index: usize) {
        if self.kinds[index].template.is_none() && !self.kinds[index].queue.is_empty() {
            return self.load(index);
        }
        loop {
            let kind = &mut self.kinds[index];
            let loaded = kind.template.as_ref().is_some_and(|template| template.said.loaded);
            if !loaded || kind.copying.len() >= MAX_COPYING {
                return;
            }
            let Some(next) = kind.queue.pop_front() else { return };
            let unit = &mut self.units[next];
            if unit.stopped {
                continue;
            }
            unit.enter(State::Starting, Instant::now());
            let ports = Ports { directory: &self.options.directory, ports: &unit.ports };
            match kind.order_copy(&ports) {
                Ok((control, output)) => {
                    // The copy's process is not known before its first report.
                    let (said, member) = (Said::default(), Member::new());
                    unit.process = Some(Process { child: None, control, output, said, member });
                    kind.copying.push_back(next);
                    self.watch(next);
                }
                Err(error) => self.ended(next, End::not_started(&error)),
            }
        }
    }

    /// Starts the process that is to be copied.
    pub(super) fn load(&mut self, index: usize) {
        let kind = &mut self.kinds[index];
        kind.since = Instant::now();
        let started = kind.start().and_then(|process| {
            let sources = [
                (What::TemplateControl, Some(process.control.as_fd())),
                (What::TemplateOutput, Some(process.output.as_fd())),
                (What::TemplateEnd, process.child.as_ref().map(AsFd::as_fd)),
            ];
            listen(&self.epoll, index, sources)?;
            kind.template = Some(process);
            Ok(())
        });
        match started {
            Ok(()) => self.after(BOOT, Due::Load { kind: index }),
            Err(error) => self.lose_template(index, &format!("{error:#}")),
        }
    }

    /// Handles the end of the process that was to be copied: the guests that wait for copies fail.
    pub(super) fn lose_template(&mut self, index: usize, why: &str) {
        let kind = &mut self.kinds[index];
        kind.template = None;
        let lost: Vec<usize> = kind.copying.drain(..).chain(kind.queue.drain(..)).collect();
        for unit in lost {
            if self.units[unit].waits_for_copy() {
                self.ended(unit, End::failed(format!("its program could not be copied: {why}")));
            }
        }
        self.sweep_soon();
    }

    /// Ends a template that is not needed any more.
    pub(super) fn dismiss(&mut self, kind: usize) {
        let needed = |unit: &Unit| unit.kind == kind && unit.state != State::Ended;
        if !self.units.iter().any(needed)
            && let Some(template) = &self.kinds[kind].template
        {
            template.kill();
        }
    }

    pub(super) fn hear_template(&mut self, index: usize) {
        for _ in 0..2 * MAX_COPYING {
            let Some(template) = &mut self.kinds[index].template else { return };
            match process::receive(template.control.as_fd()) {
                Ok(None) => break,
                Ok(Some((Report::Copied, _))) => {
                    if self.kinds[index].copying.pop_front().is_none() {
                        return self.kill_template(index);
                    }
                }
                Ok(Some((Report::Failed(why), _))) => {
                    let failed = self.kinds[index].copying.pop_front();
                    let waits = |unit: &usize| self.units[*unit].waits_for_copy();
                    if let Some(unit) = failed.filter(waits) {
                        self.ended(unit, End::failed(why));
                    }
                }
                Ok(Some((report, _))) => {
                    if !template.said.note(report) {
                        template.kill();
                    }
                }
                Err(_) => {
                    let _ = epoll::delete(&self.epoll, &template.control);
                    template.kill();
                    return;
                }
            }
        }
        self.copy(index);
    }

    /// Notes which process a copy is: the one that has sent its first report, as the kernel says.
    /// Returns false if it is not a new child: then the program lies, and its template ends.
    pub(super) fn identify(&mut self, index: usize, sender: Option<i32>) -> bool {
        let found = sender.and_then(Pid::from_raw).ok_or_else(|| Errno::SRCH.into());
        // A child that is another guest, or a template, has an owner already.
        let child = found.and_then(Supervised::child).and_then(|child| {
            epoll::add(&self.epoll, &child, What::End.data(index), EventFlags::IN)?;
            Ok(child.ending_with_this())
        });
        let unit = &mut self.units[index];
        let Some(process) = &mut unit.process else { return false };
        match child {
            Ok(child) => {
                process.child = Some(child);
                self.limit(index);
                true
            }
            Err(error) => {
                let how = process.said.last_words().map(ToOwned::to_owned);
                let how = how.unwrap_or_else(|| format!("its copy is not there: {error}"));
                let kind = unit.kind;
                self.ended(index, End::failed(how));
                if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) {
                    self.kill_template(kind);
                }
                false
            }
        }
    }

    pub(super) fn kill_template(&self, kind: usize) {
        self.kinds[kind].template.as_ref().into_iter().for_each(Process::kill);
    }

    pub(super) fn read_template(&mut self, index: usize) {
        let kind = &mut self.kinds[index];
        let Some(template) = &kind.template else { return };
        let mut piece = [0; log::PIECE];
        match rustix::io::read(&template.output, &mut piece[..]) {
            Ok(len @ 1..) => {
                if !kind.log.write(&piece[..len], Instant::now()) {
                    template.kill();
                }
                if self.options.echo && self.options.kept.is_none() {
                    kind.log.print(&kind.name, &piece[..len]);
                }
            }
            Ok(_) | Err(Errno::IO) => {
                let _ = epoll::delete(&self.epoll, &template.output);
            }
            Err(_) => {}
        }
    }

    pub(super) fn collect_template(&mut self, index: usize) {
        self.hear_template(index);
        let Some(template) = &self.kinds[index].template else { return };
        let Some(child) = &template.child else { return };
        if let Some(end) = process::collect(child, &template.said) {
            self.lose_template(index, &end.how);
        }
    }
}
