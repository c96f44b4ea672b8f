use std::time::{Duration, Instant};

use jail::strangers::Descriptor;

use super::*;

const MS: u64 = Nanos::MILLI;
const SECOND: u64 = Nanos::SECOND;

fn users() -> Users {
    Users::new([]).unwrap()
}

/// Notes a call that worked for `ms` milliseconds.
fn slow(user: &Arc<User>, ms: u64, at: u64, by: By) {
    user.was_slow(Slow { took: ms * MS, worked: ms * MS, at: Nanos(at) }, None, by);
}

/// Waits until `is` returns true.
fn until(mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < Duration::from_secs(60), "in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An eventfd that wakes for a user, and a reader of its counter.
fn waker(user: &Arc<User>) -> (Arc<Waker>, impl Fn() -> u64 + use<>) {
    let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let fd = Arc::new(Descriptor::ours(fd));
    let waker = Payer::new(Arc::clone(user), None).eventfd(Arc::clone(&fd));
    let written = move || {
        let mut count = [0; 8];
        rustix::io::read(&*fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    (waker, written)
}

/// Wakes through a waker; true if this thread made the call.
fn wakes(waker: &Arc<Waker>) -> bool {
    let this = waker.other_thread().is_none();
    waker.wake();
    this
}

fn standings(users: &Users, at: u64) -> Vec<(u32, Standing)> {
    users.expire(Nanos(at)).into_iter().map(|news| (news.user.uid, news.standing)).collect()
}

#[test]
fn slow_calls_have_a_user_helped_and_then_at_fault_and_terms_end() {
    let (users, start) = (users(), 10 * SECOND);
    let (bad, other) = (users.of(1), users.of(2));
    slow(&bad, 200, start, By::Server);
    assert_eq!((bad.standing(), other.standing()), (Standing::Helped, Standing::Good));
    assert!(Arc::ptr_eq(&bad, &users.of(1)), "whichever port it is");
    slow(&bad, 200, start, By::Helper);
    slow(&bad, 200, start + SECOND, By::Helper);
    assert_eq!(bad.standing(), Standing::Helped, "its own thread may take its time");
    slow(&bad, 200, start + 2 * SECOND, By::Helper);
    assert_eq!(bad.standing(), Standing::AtFault);
    assert_eq!(standings(&users, start), [(1, Standing::Helped), (1, Standing::AtFault)]);
    // The second term is twice as long, so the way back to good standing is, too.
    let mut now = start + 2 * SECOND;
    for standing in [Standing::Helped, Standing::Good] {
        assert_eq!(standings(&users, now + 2 * TERM_NS - 1), []);
        now += 2 * TERM_NS;
        assert_eq!(standings(&users, now), [(1, standing)]);
    }
    slow(&bad, 10, now, By::Server);
    assert_eq!(standings(&users, now + 4 * TERM_NS - 1), [(1, Standing::Helped)], "and longer");
}

#[test]
fn a_user_that_is_slow_again_without_a_helper_thread_is_at_fault() {
    let users = users();
    let user = users.of(1);
    slow(&user, 10, SECOND, By::Server);
    slow(&user, 9, SECOND, By::Server);
    assert_eq!(user.standing(), Standing::Helped);
    slow(&user, 1, SECOND, By::Server);
    assert_eq!(user.standing(), Standing::AtFault);
}

#[test]
fn rare_slowness_and_lack_of_a_processor_are_charged_to_no_user() {
    let users = users();
    let user = users.of(1);
    for second in 1..1000 {
        slow(&user, 9, second * SECOND, By::Server);
        let waited = Slow { took: 500 * MS, worked: QUICK_NS - 1, at: Nanos(second * SECOND) };
        user.was_slow(waited, None, By::Server);
    }
    assert_eq!(user.standing(), Standing::Good);
    slow(&user, 2, 999 * SECOND, By::Server);
    assert_eq!(user.standing(), Standing::Helped);
}

#[test]
fn a_helped_owner_is_woken_by_another_thread_once_for_many_wakes() {
    let users = users();
    let user = users.of(1);
    let (waker, written) = waker(&user);
    assert!(wakes(&waker) && wakes(&waker));
    assert_eq!(written(), 2);
    slow(&user, 200, SECOND, By::Server);
    assert!(!wakes(&waker), "not by this thread");
    let mut count = 0;
    until(|| {
        count += written();
        count > 0
    });
    let before = count;
    (0..1000).for_each(|_| assert!(!wakes(&waker)));
    until(|| {
        count += written();
        count > before
    });
    assert!(count <= 1001);
    // Jobs are done in order: once the other eventfd is signalled, the first job is done.
    let (other, rung) = self::waker(&user);
    assert!(!wakes(&other));
    until(|| rung() == 1);
    written();
    slow(&user, 500, SECOND, By::Helper);
    assert!(!wakes(&waker));
    assert!(!waker.is_asked(), "nothing is asked for");
    assert_eq!(written(), 0);
}

#[test]
fn what_is_asked_for_as_the_thread_ends_is_done() {
    let users = users();
    let user = users.of(1);
    let (waker, written) = waker(&user);
    slow(&user, 200, SECOND, By::Server);
    let _ = users.expire(Nanos(SECOND + TERM_NS));
    until(|| user.office.helpers.load(Ordering::Relaxed) == 0);
    // Like a worker that found the user helped a moment ago.
    waker.ask(&user, 1);
    assert_eq!(written(), 1);
    slow(&user, 200, SECOND + 2 * TERM_NS, By::Server);
    assert!(!wakes(&waker));
    until(|| written() == 1);
}

#[test]
fn threads_are_bounded_and_users_beyond_them_are_at_fault() {
    let users = users();
    let all: Vec<_> = (0..=MOST_HELPERS as u32).map(|uid| users.of(uid)).collect();
    all.iter().for_each(|user| slow(user, 200, SECOND, By::Server));
    let helped = all.iter().filter(|user| user.standing() == Standing::Helped).count();
    assert_eq!((helped, all[MOST_HELPERS].standing()), (MOST_HELPERS, Standing::AtFault));
    // Users whose standing improves free their threads; the waiting user is helped then.
    let _ = users.expire(Nanos(SECOND + TERM_NS));
    until(|| {
        let _ = users.expire(Nanos(SECOND + TERM_NS));
        all[MOST_HELPERS].standing() == Standing::Helped
    });
}

#[test]
fn users_without_ports_are_remembered_while_something_is_held_against_them() {
    let users = users();
    slow(&users.of(1), 200, SECOND, By::Server);
    drop(users.of(2));
    let _ = users.expire(Nanos(2 * SECOND));
    assert_eq!(users.of(1).standing(), Standing::Helped, "its ports are gone, and come again");
    let known = || users.lock().keys().copied().collect::<Vec<_>>();
    assert_eq!(known(), [1]);
    let _ = users.expire(Nanos(SECOND + TERM_NS));
    assert_eq!((users.of(1).standing(), known()), (Standing::Good, vec![1]));
    until(|| users.of(1).office.helpers.load(Ordering::Relaxed) == 0);
    let _ = users.expire(Nanos(SECOND + 2 * TERM_NS));
    assert!(known().is_empty());
}
