//! Meetings on loopback sockets, each process on a thread of this one.
//!
//! Would catch: a process of another job, version or size that takes part; a stranger, or somebody silent, that stops the waiting; a
//! waiting that never ends, or ends without saying who was missing; a process that was started again and is taken for the one before.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::meet::{Met, meet};
use super::wire::{Frame, FrameReader, Hello};
use crate::control::Control;
use crate::epoch::{Clock, SystemClock};
use crate::error::{ErrorKind, Result};

/// Far above what anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Free addresses, each given once, and none of those that the system gives to connections.
fn addresses(processes: usize) -> Vec<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(89); // other runs begin elsewhere
    let ports = std::iter::repeat_with(|| 10_000 + first.wrapping_add(NEXT.fetch_add(1, Ordering::SeqCst)) % 22_000);
    let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
    addresses.filter(|address| TcpListener::bind(address).is_ok()).take(processes).collect()
}

fn hello(index: usize, processes: usize) -> Hello {
    Hello { processes: processes as u64, index: index as u64, token: 40 + index as u64, ..super::wire::tests::hello(0) }
}

struct Process {
    control: Control,
    thread: JoinHandle<Result<Option<Vec<Option<Met>>>>>,
}

fn start(me: Hello, addresses: &[String], within: Duration) -> Process {
    let (control, addresses) = (Control::new(), addresses.to_vec());
    let told = control.clone();
    Process { control, thread: thread::spawn(move || meet(me, addresses, within, &told)) }
}

impl Process {
    fn end(self) -> Result<Option<Vec<Option<Met>>>> {
        let (clock, thread) = (SystemClock::new(), self.thread);
        while !thread.is_finished() {
            assert!(clock.monotonic() < LONG, "the meeting does not end");
            thread::sleep(Duration::from_millis(1));
        }
        thread.join().expect("no panic")
    }

    fn met(self) -> Vec<Option<Met>> {
        self.end().expect("it meets the others").expect("it is not stopped")
    }

    /// The text of its error, which must have these parts.
    fn fails(self, parts: &[&str]) {
        let error = self.end().expect_err("it does not meet the others");
        assert_eq!(error.kind(), ErrorKind::Cluster);
        for part in parts {
            assert!(error.report().contains(part), "{:?} has no {part:?}", error.report());
        }
    }
}

/// Connects as soon as somebody listens.
fn connect(address: &str) -> TcpStream {
    let clock = SystemClock::new();
    loop {
        match TcpStream::connect(address) {
            // A port that nobody listens on may be the one that the call itself comes from.
            Ok(stream) if stream.local_addr().ok() != stream.peer_addr().ok() => return stream,
            _ => assert!(clock.monotonic() < LONG, "nobody listens"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Says who it is, and gives the answer.
fn say_hello(address: &str, hello: Hello) -> (TcpStream, Frame) {
    let mut stream = connect(address);
    Frame::Hello(Box::new(hello)).write(&mut stream).expect("it is read");
    let answer = FrameReader::default().read(&mut stream).expect("an answer");
    (stream, answer)
}

#[test]
fn all_meet_whatever_the_order_and_are_connected() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let addresses = addresses(4);
        let mut processes: Vec<_> = order
            .into_iter()
            .map(|index| {
                thread::sleep(Duration::from_millis(20)); // so that there is an order
                (index, start(hello(index, 4), &addresses, LONG))
            })
            .collect();
        processes.sort_by_key(|(index, _)| *index);
        let mut met: Vec<_> = processes.into_iter().map(|(_, process)| process.met()).collect();
        for (one, all) in met.iter().enumerate() {
            assert_eq!(
                all.iter().map(Option::is_none).collect::<Vec<_>>(),
                (0..4).map(|at| at == one).collect::<Vec<_>>()
            );
        }
        for (one, other) in [(0, 1), (3, 0), (1, 2)] {
            let sends = met[one][other].as_mut().expect("it was met");
            assert_eq!(
                (sends.name.as_str(), sends.peer_timeout.as_secs()),
                (&*format!("process {other} ({})", addresses[other]), 30)
            );
            sends.data.write_all(b"data").expect("it is sent");
            sends.beat.write_all(b"beat").expect("it is sent");
            let hears = met[other][one].as_mut().expect("it was met");
            let mut bytes = [0; 4];
            hears.data.read_exact(&mut bytes).expect("it comes");
            assert_eq!(&bytes, b"data", "nothing is in front of timely's bytes");
            hears.beat.set_nonblocking(false).expect("it is set");
            hears.beat.read_exact(&mut bytes).expect("it comes");
            assert_eq!(&bytes, b"beat");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_on_both_sides_and_the_right_one_is_waited_for() {
    type Change = fn(&mut Hello);
    let cases: [(Change, &str); 7] = [
        (|hello| hello.version = "9.9.9".into(), "process 1 runs syncline 9.9.9, process 0 runs syncline 1.2.3"),
        (|hello| hello.job = "other".into(), "process 1 runs the job \"other\", process 0 runs the job \"job\""),
        (|hello| hello.processes = 3, "process 1 was started with -n 3, process 0 was started with -n 2"),
        (|hello| hello.threads = 4, "process 1 was started with -w 4, process 0 was started with -w 1"),
        (|hello| hello.settings[1].1 = 7, "other settings than process 0: window_time"),
        (|hello| drop(hello.settings.pop()), "other settings than process 0: window_time"),
        (|hello| hello.token = 40, "the hostfile gives process 0 the address of process 0"), // never by chance
    ];
    for (change, text) in cases {
        let addresses = addresses(2);
        let waits = start(hello(0, 2), &addresses, LONG);
        let mut wrong = hello(1, 2);
        change(&mut wrong);
        let wrong = start(wrong, &addresses, LONG);
        if text.starts_with("the hostfile") {
            wrong.control.stop();
            drop(wrong.end());
        } else {
            wrong.fails(&["process 0 (127.0.0.1:", "refuses this process", text]);
        }
        let right = start(hello(1, 2), &addresses, LONG);
        assert_eq!((right.met().len(), waits.met().len()), (2, 2));
    }

    let addresses = addresses(2);
    let waits = start(hello(0, 2), &addresses, Duration::from_millis(500));
    let wrong = start(Hello { threads: 4, ..hello(1, 2) }, &addresses, LONG);
    wrong.fails(&["-w 4"]);
    waits.fails(&[
        "have not met within 500ms",
        "process 1 (127.0.0.1:",
        "was refused",
        "-w 4, process 0 was started with -w 1",
    ]);
}

#[test]
fn an_index_is_there_once() {
    let addresses = addresses(3);
    let waits = start(hello(0, 3), &addresses, LONG);
    let as_one = |token: u64, is_beat: bool| Hello { token, to: 0, is_beat, ..hello(1, 3) };
    let (_data, answer) = say_hello(&addresses[0], as_one(7, false));
    assert!(matches!(answer, Frame::Hello(_)), "{answer:?}");
    for is_beat in [false, true] {
        let (_, answer) = say_hello(&addresses[0], as_one(8, is_beat));
        let Frame::Refused(text) = answer else { panic!("{answer:?}") };
        assert!(text.contains("process 1 (127.0.0.1:"), "{text}");
        assert!(text.contains(if is_beat { "was started again meanwhile" } else { "is here already" }), "{text}");
    }
    for (index, to, part) in
        [(0, 0, "both were started with -p 0"), (1, 2, "hostfiles differ"), (7, 0, "no process 7 of 3")]
    {
        let (_, answer) = say_hello(&addresses[0], Hello { index, to, token: 9, ..hello(1, 3) });
        let Frame::Refused(text) = answer else { panic!("{answer:?}") };
        assert!(text.contains(part), "{text}");
    }
    // What broke while it shook hands comes again, as the same process.
    let (_data, answer) = say_hello(&addresses[0], as_one(7, false));
    assert!(matches!(answer, Frame::Hello(_)), "{answer:?}");
    waits.control.stop();
    assert!(waits.end().expect("no failure").is_none());
}

#[test]
fn two_processes_with_the_same_address_are_told() {
    let addresses = addresses(2);
    let waits = start(hello(0, 2), &addresses, LONG);
    drop(connect(&addresses[0]));
    start(hello(0, 2), &addresses, LONG).fails(&["process 0 of the job cannot listen on 127.0.0.1:", "the same -p"]);
    waits.control.stop();
    assert!(waits.end().expect("no failure").is_none());
}

#[test]
fn strangers_stop_nobody() {
    let addresses = addresses(2);
    let waits = start(hello(0, 2), &addresses, LONG);
    let silent = connect(&addresses[0]);
    drop(connect(&addresses[0]));
    for bytes in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0xff; 5_000], b"SYNCLINE\0\x01\x09\0\0\0\0", &[0; 100]] {
        let mut stranger = connect(&addresses[0]);
        let _ = stranger.write_all(bytes); // it may be dropped before its end
        if bytes[0] != 0 {
            let _ = stranger.read(&mut [0; 64]); // until it is dropped
        }
    }
    let (_, answer) = say_hello(&addresses[0], Hello { index: u64::MAX, to: 0, ..hello(1, 2) });
    assert!(matches!(answer, Frame::Refused(_)), "{answer:?}");
    let mut later = Frame::Hello(Box::new(hello(1, 2))).to_bytes();
    later[9] = 2;
    let mut stream = connect(&addresses[0]);
    stream.write_all(&later).expect("it is sent");
    let answer = FrameReader::default().read(&mut stream).expect("a refusal");
    let Frame::Refused(text) = answer else { panic!("{answer:?}") };
    assert!(text.contains("version 2 of the protocol of processes, this one version 1"), "{text}");

    let comes = start(hello(1, 2), &addresses, LONG);
    assert_eq!((comes.met().len(), waits.met().len()), (2, 2));
    drop(silent);
}

#[test]
fn the_silent_are_dropped_after_a_while() {
    let addresses = addresses(2);
    let waits = start(hello(0, 2), &addresses, LONG);
    let mut silent = connect(&addresses[0]);
    silent.set_read_timeout(Some(LONG)).expect("it is set");
    assert_eq!(silent.read(&mut [0]).expect("it is closed"), 0);
    waits.control.stop();
    assert!(waits.end().expect("no failure").is_none());
}

#[test]
fn who_is_missing_is_named() {
    let addresses = addresses(4);
    let within = Duration::from_millis(1_000);
    let (one, two) = (start(hello(1, 4), &addresses, within), start(hello(2, 4), &addresses, LONG));
    let missing = |index: usize| format!("process {index} ({})", addresses[index]);
    one.fails(&[
        "have not met within 1s",
        &missing(0),
        "refused",
        &format!("{}: has not come", missing(3)),
        &missing(2),
    ]);
    two.fails(&[&missing(1), "has left before all processes had met", "have not met within 1s"]);
}

#[test]
fn who_ends_before_all_have_met_ends_the_others_and_is_named() {
    let addresses = addresses(3);
    let waits = start(hello(0, 3), &addresses, LONG);
    let as_one = |is_beat| Hello { to: 0, is_beat, ..hello(1, 3) };
    let (data, _) = say_hello(&addresses[0], as_one(false));
    let (beat, _) = say_hello(&addresses[0], as_one(true));
    drop((data, beat)); // as a process that is killed
    waits.fails(&["process 1 (127.0.0.1:", "has ended before all processes had met"]);
}

#[test]
fn an_earlier_process_in_the_place_of_another_is_found() {
    let addresses = addresses(3);
    let zero = start(hello(0, 3), &addresses, LONG);
    // Process 1 is one for process 0, and a later one for process 2; both live on as far as those can see.
    let as_one = |token, is_beat| Hello { to: 0, is_beat, token, ..hello(1, 3) };
    let (_data, _) = say_hello(&addresses[0], as_one(7, false));
    let (_beat, _) = say_hello(&addresses[0], as_one(7, true));
    let listener = TcpListener::bind(&addresses[1]).expect("the port is free");
    let two = start(hello(2, 3), &addresses, LONG);
    let mut later = vec![];
    for is_beat in [false, true] {
        let mut stream = listener.accept().expect("process 2 calls").0;
        FrameReader::default().read(&mut stream).expect("its hello");
        let answer = Hello { to: 2, is_beat, token: 8, ..hello(1, 3) };
        Frame::Hello(Box::new(answer)).write(&mut stream).expect("it is read");
        later.push(stream);
    }
    let started_again = ["process 1 (127.0.0.1:", "was started again while the processes met"];
    let [zero, two] = [zero, two].map(|process| process.end().expect_err("they differ").report());
    assert!([&zero, &two].iter().any(|text| started_again.iter().all(|part| text.contains(part))), "{zero}; {two}");
}

#[test]
fn a_stop_is_passed_on_and_obeyed() {
    let addresses = addresses(3);
    let zero = start(hello(0, 3), &addresses, LONG);
    let come = |index| {
        let as_one = |is_beat| Hello { to: 0, is_beat, ..hello(index, 3) };
        let (data, _) = say_hello(&addresses[0], as_one(false));
        let (beat, answer) = say_hello(&addresses[0], as_one(true));
        assert!(matches!(answer, Frame::Hello(_)), "{answer:?}");
        (data, beat)
    };
    let ((_data, mut one), (_data_too, mut two)) = (come(1), come(2));
    let mut frames = FrameReader::default();
    assert_eq!(frames.read(&mut two).expect("all are here"), Frame::Ready(vec![40, 41, 42]));
    Frame::Stop.write(&mut one).expect("it is sent");
    drop(one); // as a process that ends then
    assert_eq!(frames.read(&mut two).expect("it is passed on"), Frame::Stop);
    assert!(zero.end().expect("no failure").is_none());
}
