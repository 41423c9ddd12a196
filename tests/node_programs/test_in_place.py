"""Unit tests of elastic jobs whose ranks are kept: which nodes the driver may use (in_place.py), and what elastic_driver.py changes of
Horovod, with a package of its name in place of it. tests/node_programs.rs runs them."""
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.dont_write_bytecode = True
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "programs")
# the programs take their own directory for that of a job
JOB = tempfile.mkdtemp()
for script in os.listdir(PROGRAMS):
    if script.endswith(".py"):
        shutil.copy(os.path.join(PROGRAMS, script), JOB)
sys.path.insert(0, JOB)
import elastic_driver  # noqa: E402
import in_place  # noqa: E402


def tearDownModule():
    shutil.rmtree(JOB)


def place(number, ranks=1):
    return {"node": "node%d" % number, "address": "10.0.0.%d" % number, "ranks": ranks}


ORDER = [place(1), place(2), place(3)]


class Hosts(unittest.TestCase):
    def setUp(self):
        self.hosts = in_place.Hosts(ORDER, "node1")
        self.hosts.assigned(ORDER)

    def nodes(self):
        return [one["node"] for one in self.hosts.listed]

    def running(self, used=ORDER):
        return [one["node"] for one in self.hosts.running(used)]

    def test_a_node_that_was_lost_is_used_again_when_it_was_cleaned(self):
        self.hosts.leave("node2", "no answer")
        self.assertEqual((self.nodes(), self.running()), (["node1", "node3"], ["node1", "node3"]))
        self.assertEqual(self.hosts.come_back([place(2)], ORDER), [place(2)])
        self.assertEqual(self.hosts.come_back([place(2)], ORDER), [], "it is being cleaned")
        self.hosts.cleaned(place(2), False, ORDER)
        self.assertEqual(self.nodes(), ["node1", "node3"])
        self.hosts.come_back([place(2)], ORDER)
        self.hosts.cleaned(place(2), True, ORDER)
        self.assertEqual(self.nodes(), ["node1", "node2", "node3"])
        # until the driver uses it, its ranks do not take part
        self.assertEqual(self.running(), ["node1", "node3"])
        self.assertEqual(self.hosts.assigned([place(1), place(3)]), [], "it was already known to be lost")
        self.assertEqual((self.hosts.assigned(ORDER), self.running(), self.hosts.reasons), ([], ["node1", "node2", "node3"], {}))

    def test_a_drained_node_whose_ranks_still_run_needs_no_cleaning(self):
        self.hosts.leave("node3", in_place.DRAINED)
        self.assertEqual(self.nodes(), ["node1", "node2"])
        self.assertEqual((self.hosts.come_back([place(3)], ORDER), self.nodes()), ([], ["node1", "node2", "node3"]))
        self.assertEqual(self.running(), ["node1", "node2", "node3"])
        self.hosts.leave("node3", in_place.DRAINED)
        self.hosts.assigned([place(1), place(2)])
        self.assertEqual(self.hosts.come_back([place(3)], ORDER), [place(3)], "the driver has ended them")

    def test_a_node_that_the_driver_drops_is_named(self):
        self.assertEqual(self.hosts.assigned([place(1), place(2)]), ["node3"])
        self.assertEqual(in_place.Hosts(ORDER, "node1").assigned([place(2), place(3)]), [], "the launcher's node stays")

    def test_a_node_whose_ranks_fail_again_and_again_fails_the_job(self):
        for number in range(in_place.MAX_FAILURES):
            self.assertEqual(self.hosts.fail("node2", "exit code 7"), number == in_place.MAX_FAILURES - 1)
            self.assertEqual(self.hosts.reasons["node2"], "exit code 7")
            self.assertFalse(self.hosts.fail("node2", "signal 6"), "it has left, and all its ranks end")
            self.hosts.cleaned(place(2), True, ORDER)
            self.hosts.assigned(ORDER)
        self.assertEqual([self.hosts.fail("node1", "exit code 7") for _ in range(4)], [False] * 4, "its ranks end together")
        self.assertEqual((self.nodes(), self.running()), (["node1", "node2", "node3"], ["node2", "node3"]))

    def test_places_have_the_order_and_number_of_the_assigned_ranks(self):
        ranks = {"10.0.0.3": [0, 1], "10.0.0.1": [2], "10.0.0.9": [3]}
        self.assertEqual(in_place.placed({"ranks": ranks}, ORDER), [place(3, 2), place(1, 1)])


class Worlds(unittest.TestCase):
    def setUp(self):
        self.codes, self.sent = iter(()), []
        nodes = mock.Mock()
        nodes.ssh = self.ssh
        self.driver = in_place.Driver(ORDER, "node1", nodes)
        self.driver.assignment = {"ranks": {"10.0.0.1": [0], "10.0.0.2": [1]}}

    def ssh(self, place, _options, command, _stdin, _stdout):
        self.sent.append(place["node"])
        write = "cat >/dev/null; exit %d" % next(self.codes)
        return subprocess.Popen(["sh", "-c", write], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def test_what_a_node_did_not_get_is_sent_again(self):
        self.codes = iter([1, 255, 0])
        with mock.patch.object(in_place, "SEND_AGAIN", 0.01):
            self.driver.send_worlds(ORDER[:2], 3)
            self.driver.sending.join(20)
        self.assertEqual(self.sent, ["node2"] * 3)
        with open(os.path.join(JOB, in_place.WORLD)) as file:
            self.assertEqual(json.load(file), {"ranks": [0], "waits": False, "size": 2, "attempt": 3})

    def test_what_is_newer_or_the_end_of_the_attempt_ends_the_repetition(self):
        self.codes = itertools.repeat(1)
        self.driver.send_worlds(ORDER[1:2], 0)
        self.codes = itertools.repeat(0)
        self.driver.send_worlds(ORDER[1:2], 1)
        self.driver.sending.join(20)
        self.assertFalse(self.driver.sending.is_alive())
        self.codes = itertools.repeat(1)
        self.driver.send_worlds(ORDER[1:2], 2)
        self.driver.close()
        self.assertFalse(self.driver.sending.is_alive())


class Interpreter(unittest.TestCase):
    def of(self, text):
        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            return elastic_driver.interpreter(file.name)

    def test_the_first_line_names_it(self):
        self.assertEqual(self.of(b"#!/usr/bin/python3\nimport re\n"), ["/usr/bin/python3"])
        self.assertEqual(self.of(b"#!/usr/bin/env python3\n"), ["/usr/bin/env", "python3"])
        self.assertEqual(self.of(b"#! /opt/a/bin/python -s\n"), ["/opt/a/bin/python", "-s"])
        # conda and pip, where the path is too long for the kernel
        self.assertEqual(self.of(b"#!/bin/sh\n'''exec' \"/very long/python\" \"$0\" \"$@\"\n' '''\n"), ["/very long/python"])
        # wrappers that set up an environment, and other programs
        self.assertEqual(self.of(b"#!/bin/bash\nexec horovodrun\n"), [])
        self.assertEqual(self.of(b"#!/usr/bin/env bash\n"), [])
        self.assertEqual(self.of(b"\x7fELF\x02"), [])
        self.assertEqual(self.of(b""), [])


class Slot:
    def __init__(self, hostname, local_rank, rank):
        self.hostname, self.local_rank, self.rank = hostname, local_rank, rank


def horovod():
    """Modules with the classes and methods of Horovod 0.28.1 that the driver changes."""

    class HostDiscoveryScript:
        def _execute_discovery_script(self):
            raise AssertionError("it costs a Python interpreter")

    class HostManager:
        def __init__(self):
            self.blacklisted = []

        @staticmethod
        def order_available_hosts(available_hosts, prev_host_assignment_order):
            known = [host for host in prev_host_assignment_order if host in available_hosts]
            return known + [host for host in available_hosts if host not in known]

        def blacklist(self, host):
            self.blacklisted.append(host)

        def update_available_hosts(self):
            return self.updates.pop(0)

    class ElasticDriver:
        def __init__(self):
            self.host_assignments = {}

        def _update_host_assignments(self, current_hosts):
            active, self.host_assignments = set(self.host_assignments), {host: [] for host in current_hosts}
            return [host for host in current_hosts if host not in active]

        def register_worker_server(self, host, slot, addresses, secret_key):
            pass

        def stop(self, error_message=None):
            self.stopped = error_message

    class RendezvousServer:
        def init(self, host_alloc_plan):
            self.plan = host_alloc_plan

    modules = {name: types.ModuleType(name) for name in (
        "horovod", "horovod.runner", "horovod.runner.elastic", "horovod.runner.elastic.discovery", "horovod.runner.elastic.driver",
        "horovod.runner.http", "horovod.runner.http.http_server")}
    for module, kinds in (("elastic.discovery", [HostDiscoveryScript, HostManager]), ("elastic.driver", [ElasticDriver]),
                          ("http.http_server", [RendezvousServer])):
        for kind in kinds:
            setattr(modules["horovod.runner." + module], kind.__name__, kind)
    return modules, HostDiscoveryScript, HostManager, ElasticDriver, RendezvousServer


class Driver(unittest.TestCase):
    def setUp(self):
        modules, self.Script, self.Manager, self.Driver, self.Server = horovod()
        with open(elastic_driver.HOSTS, "w") as file:
            file.write("10.0.0.9:2\n10.0.0.1:1\n10.0.0.5:1\n")
        with mock.patch.dict(sys.modules, modules):
            elastic_driver.install()

    def assignment(self):
        with open(elastic_driver.ASSIGNMENT) as file:
            return json.load(file)

    def test_hosts_are_read_from_the_file_and_keep_its_order(self):
        self.assertEqual(self.Script()._execute_discovery_script(), "10.0.0.9:2\n10.0.0.1:1\n10.0.0.5:1\n")
        order = self.Manager.order_available_hosts
        self.assertEqual(order({"10.0.0.1", "10.0.0.5", "10.0.0.9"}, []), ["10.0.0.9", "10.0.0.1", "10.0.0.5"])
        self.assertEqual(order({"10.0.0.1", "10.0.0.9", "10.0.0.7"}, ["10.0.0.1"]), ["10.0.0.1", "10.0.0.9", "10.0.0.7"])

    def test_a_host_that_is_taken_back_gets_new_processes(self):
        driver, manager = self.Driver(), self.Manager()
        self.assertEqual(driver._update_host_assignments(["a", "b"]), ["a", "b"])
        self.assertEqual(driver._update_host_assignments(["a", "b"]), [])
        manager.blacklist("b")
        self.assertEqual((driver._update_host_assignments(["a", "b"]), manager.blacklisted), (["b"], ["b"]))
        self.assertEqual(driver._update_host_assignments(["a", "b"]), [])

    def test_the_job_supervisor_learns_which_process_has_which_rank(self):
        server = self.Server()
        server.init([Slot("b", 1, 1), Slot("b", 0, 0), Slot("a", 0, 2)])
        first = self.assignment()
        self.assertEqual((first["number"], first["ranks"], first["registered"]), (1, {"b": [0, 1], "a": [2]}, False))
        self.Driver().register_worker_server("a", 0, [], b"")
        self.assertEqual(self.assignment(), dict(first, registered=True))
        server.init([Slot("a", 0, 0)])
        last = self.assignment()
        self.assertEqual((last["number"], last["ranks"], last["registered"], len(server.plan)), (2, {"a": [0]}, True, 1))

    def test_a_change_is_notified_again_after_a_while(self):
        manager = self.Manager()
        for now, found, notified in ((9, 0, 0), (10, 2, 2), (14, 0, 0), (15, 0, 2), (16, 1, 1), (20, 0, 0), (21, 0, 1)):
            manager.updates = [found]
            with mock.patch("time.monotonic", return_value=now):
                self.assertEqual(manager.update_available_hosts(), notified, now)

    def test_why_horovod_ends_the_job_is_passed_on(self):
        driver = self.Driver()
        driver.stop()
        driver.stop(error_message="too many resets")
        self.assertEqual((self.assignment()["error"], driver.stopped), ("too many resets", "too many resets"))

    def test_a_full_disk_is_no_reason_to_give_up(self):
        server, manager = self.Server(), self.Manager()
        manager.updates = [0]
        with mock.patch("os.rename", side_effect=OSError):
            server.init([Slot("a", 0, 0)])
        manager.update_available_hosts()
        self.assertEqual(self.assignment()["ranks"], {"a": [0]})

    def test_another_horovod_is_left_as_it_is(self):
        modules = horovod()[0]
        del modules["horovod.runner.elastic.discovery"].HostManager.order_available_hosts
        with mock.patch.dict(sys.modules, modules), self.assertRaises(AttributeError):
            elastic_driver.install()


if __name__ == "__main__":
    unittest.main()
