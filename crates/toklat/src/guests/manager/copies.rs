//! Guests that are copies of one process, which has loaded their program.

use std::os::fd::AsFd;
use std::time::Instant;

use jail::cell::Report;
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
                    // The copy's process is not known before it is reported; until then the copying
                    // process is used.
                    let (pid, pidfd) = (rustix::process::getpid(), None);
                    let (said, member) = (Said::default(), Member::new());
                    let process = Process { pid, pidfd, control, output, said, member };
                    unit.process = Some(process);
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
                (What::TemplateControl, Some(&process.control)),
                (What::TemplateOutput, Some(&process.output)),
                (What::TemplateEnd, process.pidfd.as_ref()),
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
            self.ended(unit, End::failed(format!("its program could not be copied: {why}")));
        }
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
                Ok(Some(Report::Copied(pid))) => self.copied(index, pid),
                Ok(Some(Report::Failed(why))) => {
                    let failed = self.kinds[index].copying.pop_front();
                    failed.into_iter().for_each(|unit| self.ended(unit, End::failed(&*why)));
                }
                Ok(Some(report)) => {
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

    /// Notes the process number of a new copy.
    pub(super) fn copied(&mut self, kind: usize, pid: u32) {
        let Some(index) = self.kinds[kind].copying.pop_front() else {
            return self.kinds[kind].template.as_ref().into_iter().for_each(Process::kill);
        };
        let Some(process) = &mut self.units[index].process else { return };
        let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return };
        let opened = Process::open(pid).and_then(|pidfd| {
            epoll::add(&self.epoll, &pidfd, What::End.data(index), EventFlags::IN)?;
            Ok(pidfd)
        });
        match opened {
            Ok(pidfd) => {
                (process.pid, process.pidfd) = (pid, Some(pidfd));
                if self.units[index].stopped {
                    self.units[index].process.as_ref().inspect(|process| process.kill());
                }
                self.limit(index);
            }
            Err(error) => {
                self.ended(index, End::failed(format!("its copy is not there: {error}")));
            }
        }
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
        let Some(pidfd) = &template.pidfd else { return };
        if let Some(end) = process::collect(pidfd.as_fd(), &template.said) {
            self.lose_template(index, &end.how);
        }
    }
}
