//! Processes that do not come, are killed, stopped or cut off.
//!
//! Would catch: a process that waits for ever for one that is gone, that ends without saying which one, that gives up one that is
//! only slow, or that ends by a panic.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Cluster, DEADLINE, Growing, STOP_WITHIN, addresses, until, words};

impl Cluster {
    fn empty() -> Self {
        Cluster { children: vec![], dir: tempfile::tempdir().unwrap() }
    }

    /// Starts process `process` of so many, which finds these addresses.
    fn spawn_of(&mut self, growing: &Growing, process: usize, addresses: &[String], more: &str) {
        let hosts = self.write_hosts(&format!("hosts-{}", self.children.len()), addresses);
        let mut args = growing.args(300);
        args.extend(words(&format!("-n {} -p {process} -h {} {more}", addresses.len(), hosts.display())));
        self.spawn(&args, 0);
    }

    fn until_joined(&self, growing: &Growing, key: u64) {
        growing.append("one-p0", &[key]);
        growing.append("two-p0", &[key]);
        until("the pair is joined", DEADLINE, || self.lines("sync").len() as u64 == key + 1);
    }

    fn until_said(&self, start: usize, text: &str) {
        until(text, DEADLINE, || self.text(&format!("stderr-{start}")).contains(text));
    }

    /// What a process has said must have these parts, and nothing of a panic.
    fn said(&self, start: usize, parts: &[&str]) {
        let said = self.text(&format!("stderr-{start}"));
        for part in parts {
            assert!(said.contains(part), "{said} has no {part:?}");
        }
        assert!(!said.contains("panicked"), "{said}");
        let out = self.text(&format!("stdout-{start}"));
        assert!(!out.contains("connect"), "{out}"); // timely's own way to wait
    }
}

#[test]
fn a_process_that_never_comes_is_named() {
    let (growing, addresses) = (Growing::new(), addresses(3));
    let mut cluster = Cluster::empty();
    cluster.spawn_of(&growing, 0, &addresses, "--connect_timeout 3s");
    cluster.spawn_of(&growing, 1, &addresses, "");
    assert_eq!(cluster.wait(DEADLINE), [Some(1), Some(1)]);
    let missing =
        format!("syncline: the processes of the job have not met within 3s: process 1 ({}): is here", addresses[1]);
    cluster.said(0, &[&missing, &format!("process 2 ({}): has not come", addresses[2])]);
    cluster
        .said(1, &[&format!("syncline: process 0 ({}) has left before all", addresses[0]), "have not met within 3s"]);
}

#[test]
fn one_that_is_killed_before_all_have_met_ends_the_others() {
    let (growing, addresses) = (Growing::new(), addresses(3));
    let mut cluster = Cluster::empty();
    cluster.spawn_of(&growing, 0, &addresses, "");
    cluster.spawn_of(&growing, 1, &addresses, "");
    cluster.until_said(0, &format!("process 1 ({}) is here", addresses[1]));
    cluster.signal(1, "KILL");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(1), None]);
    cluster.said(0, &[&format!("syncline: process 1 ({}) has ended before all processes had met", addresses[1])]);
}

#[test]
fn strangers_and_processes_of_other_options_are_refused_and_the_right_one_comes() {
    let (growing, addresses) = (Growing::new(), addresses(2));
    let mut cluster = Cluster::empty();
    cluster.spawn_of(&growing, 0, &addresses, "");
    until("it listens", DEADLINE, || {
        TcpStream::connect(&addresses[0]).is_ok_and(|mut stream| stream.write_all(b"GET / HTTP/1.1\r\n\r\n").is_ok())
    });
    cluster.until_said(0, "was dropped, waiting for others goes on: it is no process of a job, it sent \"GET / HTTP");
    for (more, text) in [
        ("-w 2", "process 1 was started with -w 2, process 0 was started with -w 1"),
        ("--late drop", "process 1 was started with other settings than process 0: late"),
    ] {
        let start = cluster.children.len();
        cluster.spawn_of(&growing, 1, &addresses, more);
        assert_eq!(cluster.children[start].wait().unwrap().code(), Some(1));
        cluster.said(start, &[&format!("syncline: process 0 ({}) refuses this process: {text}", addresses[0])]);
        cluster.until_said(0, text);
    }
    cluster.spawn_of(&growing, 1, &addresses, "");
    cluster.until_joined(&growing, 0);
    cluster.signal(0, "TERM");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(0), Some(1), Some(1), Some(0)]);
}

#[test]
fn a_stop_before_all_have_met_ends_those_who_are_here() {
    let (growing, addresses) = (Growing::new(), addresses(3));
    let mut cluster = Cluster::empty();
    cluster.spawn_of(&growing, 0, &addresses, "");
    cluster.spawn_of(&growing, 2, &addresses, "");
    cluster.until_said(0, "process 2");
    cluster.signal(1, "TERM");
    assert_eq!(cluster.wait(STOP_WITHIN / 2), [Some(0), Some(0)]);
}

#[test]
fn one_that_is_stopped_is_given_up_and_learns_it() {
    let (growing, addresses) = (Growing::new(), addresses(2));
    let mut cluster = Cluster::empty();
    for process in 0..2 {
        cluster.spawn_of(&growing, process, &addresses, "--peer_timeout 3s");
    }
    cluster.until_joined(&growing, 0);
    for key in 1..3 {
        cluster.signal(1, "STOP");
        std::thread::sleep(Duration::from_millis(1_000)); // well below the time after which it is given up
        cluster.signal(1, "CONT");
        cluster.until_joined(&growing, key);
    }
    cluster.signal(1, "STOP");
    let stopped = Instant::now();
    until("the other ends", DEADLINE, || cluster.children[0].try_wait().unwrap().is_some());
    let took = stopped.elapsed();
    assert!(took > Duration::from_secs(2) && took < Duration::from_secs(10), "{took:?}");
    assert_eq!(cluster.children[0].wait().unwrap().code(), Some(1));
    let lost =
        format!("syncline: the connection to process 1 ({}) was lost: nothing was heard of it for 3s", addresses[1]);
    cluster.said(0, &[&lost, "(--peer_timeout), since 20"]);
    until("it has been stopped for longer than it may", DEADLINE, || stopped.elapsed() > Duration::from_millis(4_500));
    cluster.signal(1, "CONT");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(1), Some(1)]);
    cluster.said(1, &[&format!("process 0 ({}) was lost", addresses[0]), "; this process stood still for "]);
}

/// Forwards connections to an address until it is cut; then it is as silent as a network that is gone.
fn proxy(to: String) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, cut) = (listener.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(false)));
    let is_cut = Arc::clone(&cut);
    std::thread::spawn(move || {
        for caller in listener.incoming().map(Result::unwrap) {
            let Ok(called) = TcpStream::connect(&to) else { continue };
            for (from, to) in [(caller.try_clone().unwrap(), called.try_clone().unwrap()), (called, caller)] {
                let is_cut = Arc::clone(&is_cut);
                std::thread::spawn(move || forward(from, to, &is_cut));
            }
        }
    });
    (address, cut)
}

fn forward(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer);
        if cut.load(Ordering::SeqCst) {
            std::thread::sleep(DEADLINE); // both ends stay open
            return;
        }
        match read {
            Ok(0) => break,
            Ok(read) if to.write_all(&buffer[..read]).is_ok() => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write); // it may be gone
}

#[test]
fn processes_that_are_cut_off_from_each_other_end_both() {
    let (growing, addresses) = (Growing::new(), addresses(2));
    let (proxy, cut) = proxy(addresses[0].clone());
    let mut cluster = Cluster::empty();
    cluster.spawn_of(&growing, 0, &addresses, "--peer_timeout 2s");
    cluster.spawn_of(&growing, 1, &[proxy.clone(), addresses[1].clone()], "--peer_timeout 2s");
    cluster.until_joined(&growing, 0);
    cut.store(true, Ordering::SeqCst);
    // Timely's own end of a connection would wait for the other side, which cannot be heard.
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(1), Some(1)]);
    cluster.said(
        0,
        &[&format!("the connection to process 1 ({}) was lost: nothing was heard of it for 2s", addresses[1])],
    );
    cluster.said(1, &[&format!("the connection to process 0 ({proxy}) was lost: nothing was heard of it for 2s")]);
}
