//! Screens, drawn into memory.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::super::rates::tests::stats;
use super::*;

/// The screen as lines of text without spaces at their ends.
fn screen(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn view(ports: &[&str], frames: u64) -> View {
    let mut view = View::new(Sort::In, Duration::from_secs(1));
    view.update(Rates::between(&stats(1, ports, 0), &stats(2, ports, frames)));
    view
}

#[test]
fn a_screen_shows_sums_workers_ports_and_keys() {
    let mut view = view(&["p1", "p2"], 32_000_000);
    let lines = screen(&mut view, 100, 12);
    let expected = "
 in 64.0 Mpps  32.8 Gb/s   out 48.0 Mpps  24.6 Gb/s   dropped 16.0 Mpps

WORKER                        LOAD    FRAMES NS/FRAME  BATCH    SLEEPS     KICKS  CPU
vale0/0      ████████████▊     80% 32.0 Mpps     25.0   32.0       0/s       0/s  any

PORT                IN                 OUT            BATCH   DROPPED
vale0:p1     32.0 Mpps 16.4 Gb/s 24.0 Mpps 12.3 Gb/s   32.0 8.00 Mpps full 8.00M
vale0:p2     32.0 Mpps 16.4 Gb/s 24.0 Mpps 12.3 Gb/s   32.0 8.00 Mpps full 8.00M



 q quit  ? help  s sort (in)  / filter  p pause  arrows ports 1-2 of 2  every 1s";
    assert_eq!(lines.join("\n"), expected.trim_start_matches('\n'));
}

#[test]
fn every_size_of_a_screen_is_drawn() {
    let names: Vec<String> = (0..300).map(|i| format!("port-with-a-long-name-{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut view = view(&names, 64_000);
    for (width, height) in [(1, 1), (2, 2), (10, 3), (20, 5), (40, 12), (80, 24), (300, 100)] {
        assert_eq!(screen(&mut view, width, height).len(), usize::from(height));
    }
    let small = screen(&mut view, 60, 6);
    assert!(small[2].starts_with("PORT"), "{small:?}");
    assert!(small[3].contains("64.0 kpps"), "{small:?}");
}

#[test]
fn the_list_scrolls_between_its_ends() {
    let names: Vec<String> = (1..=50).map(|i| format!("p{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut view = view(&names, 64_000);
    let first = |view: &mut View| {
        let lines = screen(view, 80, 10);
        lines[3].split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(first(&mut view), "vale0:p1");
    view.scroll(1);
    assert_eq!(first(&mut view), "vale0:p2", "natural order: p2 comes before p10");
    view.scroll(isize::MAX);
    assert_eq!(first(&mut view), "vale0:p45");
    view.scroll(isize::MIN);
    view.scroll(-1);
    assert_eq!(first(&mut view), "vale0:p1");
}

#[test]
fn sorting_goes_round_and_a_paused_screen_stays() {
    let mut view = view(&["a", "b"], 64_000);
    let mut quiet = stats(3, &["a", "b"], 128_000);
    quiet.switches[0].ports[0].counters.in_frames = 64_000;
    view.update(Rates::between(&stats(2, &["a", "b"], 64_000), &quiet));
    assert!(screen(&mut view, 80, 10)[3].starts_with("vale0:b"));
    view.sort_next();
    assert!(screen(&mut view, 80, 10)[3].starts_with("vale0:a"), "out: equal, so by name");
    view.pause();
    view.update(Rates::default());
    let lines = screen(&mut view, 80, 10);
    assert!(lines[0].ends_with("paused") && lines[3].starts_with("vale0:a"), "{lines:?}");
}

#[test]
fn a_filter_leaves_ports_with_its_text() {
    let mut view = view(&["web1", "web2", "db"], 64_000);
    view.edit_filter();
    "WEB".chars().for_each(|typed| view.filter(Some(typed)));
    let lines = screen(&mut view, 80, 10);
    assert!(lines[9].starts_with(" filter: WEB_"), "{lines:?}");
    assert!(lines[3].starts_with("vale0:web1") && lines[5].is_empty(), "{lines:?}");
    view.end_filter(true);
    let lines = screen(&mut view, 80, 10);
    assert!(lines[9].contains("/ WEB") && lines[9].contains("1-2 of 2"), "{lines:?}");
    view.scroll(isize::MAX);
    view.edit_filter();
    view.filter(Some('d'));
    view.filter(Some('x'));
    view.filter(None);
    assert!(screen(&mut view, 80, 10)[3].starts_with("vale0:db"));
    view.end_filter(false);
    assert!(screen(&mut view, 80, 10)[5].starts_with("vale0:web2"));
}

#[test]
fn the_help_names_every_key() {
    let mut view = view(&["p1"], 64);
    view.help();
    let lines = screen(&mut view, 100, 20).join("\n");
    assert!(
        HELP.iter().all(|(keys, what)| lines.contains(keys) && lines.contains(what)),
        "{lines}"
    );
    view.help();
    assert!(screen(&mut view, 100, 20).join("\n").contains("vale0:p1"));
}

#[test]
fn the_rate_is_both_ways() {
    let mut view = view(&["a", "b", "c"], 0);
    let mut now = stats(2, &["a", "b", "c"], 1000);
    for (port, (sent, received)) in [(9000, 0), (5000, 5000), (0, 8000)].into_iter().enumerate() {
        let counters = &mut now.switches[0].ports[port].counters;
        (counters.in_frames, counters.out_frames) = (sent, received);
    }
    view.update(Rates::between(&stats(1, &["a", "b", "c"], 0), &now));
    view.sort_by(Sort::Rate);
    let lines = screen(&mut view, 80, 10);
    let order: Vec<&str> = lines[3..6].iter().map(|line| &line[..7]).collect();
    assert_eq!(order, ["vale0:b", "vale0:a", "vale0:c"]);
}

#[test]
fn a_daemon_that_went_away_is_said() {
    let mut view = view(&["p1"], 64);
    view.fail("The daemon is not running".into());
    assert_eq!(screen(&mut view, 80, 10)[0], " The daemon is not running");
    view.update(Rates::default());
    assert!(screen(&mut view, 80, 10)[0].starts_with(" no ports"));
}

#[test]
fn a_ports_history_is_a_bar_for_each_reading() {
    let mut view = View::new(Sort::Name, Duration::from_secs(1));
    for (second, frames) in [0, 1000, 3000, 3000, 11_000].windows(2).enumerate() {
        let second = second as u64;
        let names = ["p1", "p2"];
        let before = stats(second, &names, frames[0]);
        view.update(Rates::between(&before, &stats(second + 1, &names, frames[1])));
    }
    let shown = |view: &mut View| {
        let lines = screen(view, 80, 20);
        lines
            .iter()
            .position(|line| line.contains("in the last"))
            .map(|at| lines[at..at + 4].to_vec())
    };
    assert_eq!(shown(&mut view), None, "until it is asked for");
    view.graph();
    let lines = shown(&mut view).unwrap();
    assert_eq!(lines[0], " vale0:p1 in the last 4 readings");
    assert!(lines[1].starts_with(" in ") && lines[1].ends_with(" ▁▂ █"), "{lines:?}");
    assert!(lines[2].starts_with(" out ") && lines[3].starts_with(" dropped "), "{lines:?}");
    view.graph();
    "p2".chars().for_each(|typed| view.filter(Some(typed)));
    let lines = shown(&mut view).unwrap();
    assert!(lines[0].starts_with(" vale0:p2"), "the only one that is shown: {lines:?}");
    // A small screen has no room for it.
    assert!(screen(&mut view, 80, 13).iter().all(|line| !line.contains("in the last")));
}
