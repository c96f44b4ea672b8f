//! What the control thread has a worker do: take ports over and give them up, measure, finish.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use port::Nanos;
use rustix::event::epoll;
use turn::serve::Served;

use super::common::{Job, Mailbox};
use super::measure::Measure;
use super::{Worker, port_at};
use crate::config::PortId;

impl Worker {
    #[cold]
    pub(super) fn do_jobs(&mut self, mailbox: &Mailbox, now: Nanos) {
        mailbox.pending.store(false, Ordering::Relaxed);
        let jobs =
            std::mem::take(&mut *mailbox.jobs.lock().unwrap_or_else(PoisonError::into_inner));
        for job in jobs {
            match job {
                Job::Serve(port) => self.serve(port, now),
                Job::Wake(id) => self.wake_port(id, now, false),
                Job::Release(id, reply) => {
                    let _ = reply.send(self.release(id));
                }
                Job::Link(id, change) => {
                    if let Some(port) = port_at(&mut self.ports, id) {
                        port.change_link(change);
                        if port.has_far_queues() && !self.far.contains(&id) {
                            self.far.push(id);
                        }
                    }
                    self.wake_port(id, now, false);
                }
                Job::Measure(until) => self.measure = Some(Measure::begin(until, &self.state)),
                Job::Settings(settings) => {
                    self.idle = settings.idle;
                    self.tools.set(settings.batch, settings.stall_timeout);
                }
                Job::Finish => {
                    self.finishing = true;
                    self.finishes_by = now + self.tools.stall_timeout;
                }
            }
        }
        self.state.ports.set(self.serving as u64);
        self.measure(mailbox, now);
    }

    fn serve(&mut self, mut port: Box<Served>, now: Nanos) {
        let id = port.id;
        let data = epoll::EventData::new_u64(u64::from(id));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let watch = |fd| epoll::add(&self.epoll, fd, data, flags).is_ok();
        if !port.source.wake_fds().into_iter().all(watch) {
            self.unwatched.push(id);
        }
        port.source.begin();
        (port.busy_at, port.hot) = (now, true);
        // The port's previous worker may have owed its owner a wake-up.
        port.held_back_until = now;
        if port.has_far_queues() {
            self.far.push(id);
        }
        self.hot.push(id);
        self.serving += 1;
        if self.ports.len() <= usize::from(id) {
            self.ports.resize_with(usize::from(id) + 1, || None);
        }
        self.ports[usize::from(id)] = Some(port);
    }

    pub(super) fn release(&mut self, id: PortId) -> Option<Box<Served>> {
        let mut port = self.ports.get_mut(usize::from(id))?.take()?;
        self.serving -= 1;
        for fd in port.source.wake_fds() {
            let _ = epoll::delete(&self.epoll, fd);
        }
        port.source.disarm();
        self.hot.retain(|hot| *hot != id);
        self.unwatched.retain(|unwatched| *unwatched != id);
        self.timers.retain(|(_, timer)| *timer != id);
        self.far.retain(|far| *far != id);
        Some(port)
    }
}
