"""Unit tests of elastic jobs whose ranks are kept: what in_place.py reads and sends, and what elastic_driver.py changes
of Horovod, with a package of its name in place of it. tests/node_programs.rs runs them."""
import collections
import enum
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

sys.dont_write_bytecode = True
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "scripts", "programs")
# the programs take their own directory for that of a job
JOB = tempfile.mkdtemp()
for directory, _, names in os.walk(PROGRAMS):
    for script in names:
        shutil.copy(os.path.join(directory, script), JOB)
sys.path.insert(0, JOB)
import elastic_driver  # noqa: E402
import in_place  # noqa: E402
import roster  # noqa: E402


def tearDownModule():
    shutil.rmtree(JOB)


def place(number, ranks=1):
    return {"node": "node%d" % number, "address": "10.0.0.%d" % number, "ranks": ranks}


ORDER = [place(1), place(2), place(3)]


class Places(unittest.TestCase):
    def test_places_have_the_order_and_number_of_the_assigned_ranks(self):
        ranks = {"10.0.0.3": [0, 1], "10.0.0.1": [2], "10.0.0.9": [3]}
        self.assertEqual(in_place.placed({"ranks": ranks}, ORDER), [place(3, 2), place(1, 1)])


class Worlds(unittest.TestCase):
    def setUp(self):
        self.codes, self.sent = iter(()), []
        nodes = mock.Mock()
        nodes.ssh = self.ssh
        self.driver = in_place.Driver(roster.Roster(ORDER, "node1"), nodes)
        self.driver.assignment = {"ranks": {"10.0.0.1": [0], "10.0.0.2": [1]}}

    def ssh(self, place, _options, command, _stdin, _stdout):
        self.sent.append(place["node"])
        write = "cat >/dev/null; exit %d" % next(self.codes)
        return subprocess.Popen(["sh", "-c", write], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def test_what_a_node_did_not_get_is_sent_again(self):
        self.codes = iter([1, 255, 0])
        with mock.patch.object(in_place, "SEND_AGAIN", 0.01):
            self.driver.send_worlds(ORDER[:2], 3)
            self.driver.sending.join(60)
        self.assertEqual(self.sent, ["node2"] * 3)
        with open(os.path.join(JOB, in_place.WORLD)) as file:
            self.assertEqual(json.load(file), {"ranks": [0], "waits": False, "size": 2, "attempt": 3, "number": 1})

    def test_ranks_wait_while_they_are_too_few_or_others_join(self):
        changes = []
        for is_short, joins in ((False, False), (True, False), (True, True), (False, True), (False, True),
                                (False, False)):
            self.driver.assignment["waits"] = joins
            changes.append((self.driver.note_shortage(is_short), self.driver.waits))
        self.assertEqual(changes, [(False, False), (True, True), (False, True), (False, True), (False, True),
                                   (True, False)])
        self.assertEqual(self.driver.waited(), 0)

    def test_what_is_newer_or_the_end_of_the_attempt_ends_the_repetition(self):
        self.codes = itertools.repeat(1)
        self.driver.send_worlds(ORDER[1:2], 0)
        self.codes = itertools.repeat(0)
        self.driver.send_worlds(ORDER[1:2], 1)
        self.driver.sending.join(60)
        self.assertFalse(self.driver.sending.is_alive())
        self.codes = itertools.repeat(1)
        self.driver.send_worlds(ORDER[1:2], 2)
        self.driver.close()
        self.assertFalse(self.driver.sending.is_alive())


class Assignments(unittest.TestCase):
    """What in_place.py takes of the file that elastic_driver.py writes."""

    VALUE = {"version": 3, "number": 1, "time": 1.5, "ranks": {"10.0.0.1": [0]}, "waits": False, "registered": True,
             "error": None}

    def setUp(self):
        self.driver, self.path = in_place.Driver(roster.Roster(ORDER, "node1"),
                                                 mock.Mock()), os.path.join(JOB, in_place.ASSIGNMENT)
        self.addCleanup(lambda: os.path.lexists(self.path) and os.unlink(self.path))

    def read(self, text):
        """What is known after the file had this text, always with the same time."""
        with open(self.path, "w") as file:
            file.write(text)
        os.utime(self.path, (1, 1))
        self.driver.read()
        return self.driver.assignment

    def test_only_a_whole_and_newer_one_is_taken(self):
        for text in ("", "{", "[" * 100000, "null", json.dumps(dict(self.VALUE, ranks={"10.0.0.1": []})),
                     json.dumps(dict(self.VALUE, ranks={"10.0.0.1": ["0"]})),
                     json.dumps(dict(self.VALUE, time=float("nan"))),
                     json.dumps(dict(self.VALUE, error=7)), json.dumps(dict(self.VALUE, number=1 << 31))):
            self.assertIsNone(self.read(text), text[:80])
        self.assertEqual(self.read(json.dumps(self.VALUE)), self.VALUE)
        self.assertEqual(self.read(json.dumps(dict(self.VALUE, version=2, number=9))), self.VALUE, "it is older")
        newer = dict(self.VALUE, version=4, registered=False)
        self.assertEqual(self.read(json.dumps(newer)), newer, "written at the same time")

    def test_a_pipe_or_a_link_in_its_place_is_not_waited_for(self):
        os.mkfifo(self.path)
        self.driver.read()
        os.unlink(self.path)
        os.symlink("/dev/zero", self.path)
        self.driver.read()
        self.assertIsNone(self.driver.assignment)


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
        self.assertEqual(self.of(b"#!/bin/sh\n'''exec' \"/very long/python\" \"$0\" \"$@\"\n' '''\n"),
                         ["/very long/python"])
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
        def __init__(self, server=None):
            self.host_assignments, self._timeout, self.server = {}, 20, server or RendezvousServer()
            self._host_manager = mock.Mock(_hosts_state=collections.defaultdict(mock.Mock))
            self.exits, self.ready = [], []

        def _update_host_assignments(self, current_hosts):
            active = set(self.host_assignments)
            self.host_assignments = {host: [Slot(host, 0, rank)] for rank, host in enumerate(current_hosts)}
            self.server.init([slot for slots in self.host_assignments.values() for slot in slots])
            return [slots[0] for host, slots in self.host_assignments.items() if host not in active]

        def has_rank_assignment(self, host, slot):
            return host in self.host_assignments

        def finished(self):
            return hasattr(self, "stopped")

        def get_slot_info(self, host, slot):
            return self.host_assignments[host][slot] if host in self.host_assignments else None

        def _handle_worker_exit(self, slot_info, exit_code, timestamp):
            self.exits.append(slot_info.hostname)

        def record_ready(self, host, slot):
            self.ready.append(host)
            self._update_host_assignments(["a"])

        def register_worker_server(self, host, slot, addresses, secret_key):
            pass

        def stop(self, error_message=None):
            self.stopped = error_message

    class RendezvousServer:
        def init(self, host_alloc_plan):
            self.plan = host_alloc_plan

    class KVStoreHandler:
        values = {}

        def _put_value(self, scope, key, value):
            self.values[scope, key] = value

        def _get_value(self, scope, key):
            return self.values.get((scope, key))

    class HostUpdateResult(enum.IntFlag):
        no_update, removed, added, mixed = range(4)

    class WorkerNotificationClient:
        def notify_hosts_updated(self, timestamp, update_res):
            self.hangs.wait()
            raise OSError("no route")

    modules = {name: types.ModuleType(name) for name in (
        "horovod", "horovod.runner", "horovod.runner.elastic", "horovod.runner.elastic.discovery",
        "horovod.runner.elastic.driver",
        "horovod.runner.elastic.worker", "horovod.runner.http", "horovod.runner.http.http_server")}
    for module, kinds in (("elastic.discovery", [HostDiscoveryScript, HostManager]),
                          ("elastic.driver", [ElasticDriver]),
                          ("elastic.worker", [HostUpdateResult, WorkerNotificationClient]),
                          ("http.http_server", [KVStoreHandler, RendezvousServer])):
        for kind in kinds:
            setattr(modules["horovod.runner." + module], kind.__name__, kind)
    return modules


class Driver(unittest.TestCase):
    def setUp(self):
        modules = horovod()
        self.Script = modules["horovod.runner.elastic.discovery"].HostDiscoveryScript
        self.Manager = modules["horovod.runner.elastic.discovery"].HostManager
        self.Driver = modules["horovod.runner.elastic.driver"].ElasticDriver
        self.Client = modules["horovod.runner.elastic.worker"].WorkerNotificationClient
        self.Server = modules["horovod.runner.http.http_server"].RendezvousServer
        self.Handler = modules["horovod.runner.http.http_server"].KVStoreHandler
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
        self.assertEqual(order({"10.0.0.1", "10.0.0.9", "10.0.0.7"}, ["10.0.0.1"]),
                         ["10.0.0.1", "10.0.0.9", "10.0.0.7"])

    def test_a_host_that_is_taken_back_gets_new_processes(self):
        driver, manager = self.Driver(), self.Manager()

        def started(hosts):
            return [slot.hostname for slot in driver._update_host_assignments(hosts)]

        self.assertEqual(started(["a", "b"]), ["a", "b"])
        self.assertEqual(started(["a", "b"]), [])
        manager.blacklist("b")
        self.assertEqual((started(["a", "b"]), manager.blacklisted), (["b"], ["b"]))
        self.assertEqual(started(["a", "b"]), [])

    def test_the_job_supervisor_learns_which_process_has_which_rank(self):
        server = self.Server()
        server.init([Slot("b", 1, 1), Slot("b", 0, 0), Slot("a", 0, 2)])
        first = self.assignment()
        self.assertEqual((first["number"], first["ranks"], first["registered"]), (1, {"b": [0, 1], "a": [2]}, False))
        self.Driver().register_worker_server("a", 0, [], b"")
        self.assertEqual(self.assignment(), dict(first, version=2, registered=True))
        server.init([Slot("a", 0, 0)])
        last = self.assignment()
        self.assertEqual((last["number"], last["ranks"], last["registered"], len(server.plan)),
                         (2, {"a": [0]}, True, 1))

    def test_threads_publish_only_whole_values(self):
        server, driver, seen = self.Server(), self.Driver(), []

        class Slow(Slot):
            """While its rank is read, another thread publishes what it knows."""

            @property
            def rank(slot):
                thread = threading.Thread(target=driver.register_worker_server, args=("a", 0, [], b""))
                thread.start()
                thread.join(60)
                seen.append(self.assignment()["ranks"])
                return 1

            @rank.setter
            def rank(self, _rank):
                pass

        server.init([Slot("a", 0, 0), Slot("b", 0, 1)])
        server.init([Slot("b", 0, 0), Slow("a", 0, 1)])
        self.assertEqual(seen, [{"a": [0], "b": [1]}])
        last = self.assignment()
        self.assertEqual((last["number"], last["ranks"], last["registered"], last["version"]),
                         (2, {"b": [0], "a": [1]}, True, 3))

    def test_the_last_thread_to_write_knows_what_has_happened_before(self):
        assignment, arrivals = elastic_driver.Assignment(), mock.Mock(new={("a", 0): "1"})
        with assignment.lock:
            thread = threading.Thread(target=assignment.wait, args=(arrivals,))
            thread.start()
            arrivals.new = {}
        thread.join(60)
        self.assertEqual((assignment.known["waits"], assignment.known["version"]), (False, 0))

    def test_a_host_that_is_blacklisted_meanwhile_is_not_forgotten(self):
        driver, manager = self.Driver(), self.Manager()

        class Meanwhile(dict):
            def pop(self, host, default=None):
                if host == "a":
                    manager.blacklist("c")
                return dict.pop(self, host, default)

        driver._update_host_assignments(["a", "b", "c"])
        driver.host_assignments = Meanwhile(driver.host_assignments)
        manager.blacklist("a")
        self.assertEqual({slot.hostname for slot in driver._update_host_assignments(["a", "b", "c"])}, {"a", "c"})

    def test_a_change_that_is_taken_part_in_meanwhile_ends_no_thread(self):
        class Meanwhile(elastic_driver.Corrections):
            """Another thread resets the change after each time that it is read."""
            known = None

            @property
            def change(self):
                known, self.known = self.known, None
                return known

            @change.setter
            def change(self, known):
                self.known = known

        corrections = Meanwhile(3)
        corrections.change = 1
        self.assertEqual(corrections.update(lambda _manager: 2, None), 3)

    def grows(self):
        """A driver that has started a process on host b while that on a goes on."""
        driver = self.Driver()
        driver._update_host_assignments(["a"])
        driver._update_host_assignments(["a", "b"])
        return driver

    def in_thread(self, work, *arguments):
        """Starts what has to wait."""
        thread, results = threading.Thread(target=lambda: results.append(work(*arguments)), daemon=True), []
        thread.start()
        thread.join(0.1)
        self.assertTrue(thread.is_alive(), "it waits")

        def result():
            thread.join(60)
            return results[0]
        return result

    def test_ranks_go_on_when_the_new_ones_are_there(self):
        driver = self.grows()
        number = self.in_thread(driver.get_slot_info, "a", 0)
        self.Handler()._put_value("local_b", "0", b"address")
        self.assertTrue(self.assignment()["waits"], "those that wait are not idle")
        self.Handler()._put_value("global", "rank_1", b"host")
        self.assertFalse(self.assignment()["waits"])
        self.assertEqual((number().rank, driver.ready), (0, []))
        self.assertEqual(driver.get_slot_info("b", 0).rank, 1, "no rank waits any more")

    def test_ranks_go_on_without_new_ones_that_fail(self):
        driver = self.grows()
        number = self.in_thread(driver.get_slot_info, "a", 0)
        driver._handle_worker_exit(Slot("removed", 0, 1), 134, 0)
        driver._handle_worker_exit(Slot("b", 0, 1), 1, 0)
        self.assertEqual((number().rank, driver.ready, driver.exits), (0, ["a"], ["removed", "b"]))
        driver._host_manager._hosts_state["b"].set_event.assert_called_once_with()

    def test_a_process_without_an_assignment_does_not_wait_for_new_ones(self):
        driver = self.grows()
        self.assertEqual((driver.get_slot_info("removed", 0), driver.ready), (None, []))

    def test_a_process_that_exits_while_ranks_are_assigned_is_not_forgotten(self):
        driver = self.Driver()
        driver._update_host_assignments(["a", "b", "c"])
        driver._handle_worker_exit(Slot("b", 0, 1), 1, 0)
        driver._handle_worker_exit(Slot("c", 0, 2), 1, 0)
        driver._update_host_assignments(["a", "b"])
        self.assertEqual((driver.get_slot_info("a", 0).rank, driver.ready), (0, ["a"]), "b has to be replaced")

    def test_nothing_waits_when_horovod_has_ended_the_job(self):
        driver = self.grows()
        number, address = self.in_thread(driver.get_slot_info, "a",
                                         0), self.in_thread(self.Handler()._get_value, "global", "0")
        driver.stop()
        self.assertEqual((number().rank, address(), driver.ready), (0, None, []))
        self.assertEqual((driver.get_slot_info("a", 0).rank, driver.ready), (0, []))

    def test_ranks_go_on_without_new_ones_that_are_late(self):
        driver = self.Driver()
        driver._timeout = 0.01
        driver._update_host_assignments(["a"])
        driver._update_host_assignments(["a", "b"])
        self.assertEqual((driver.get_slot_info("a", 0).rank, driver.ready), (0, ["a"]))
        driver._host_manager._hosts_state["b"].set_event.assert_called_once_with()

    def test_a_rank_that_ends_while_it_waits_is_counted_once(self):
        driver = self.grows()
        number = self.in_thread(driver.get_slot_info, "a", 0)
        driver._handle_worker_exit(Slot("a", 0, 0), 1, 0)
        self.assertEqual((number().rank, driver.ready), (0, []))

    def test_at_the_start_horovod_limits_the_wait(self):
        driver = self.Driver()
        driver._update_host_assignments(["a", "b"])
        with mock.patch("threading.Condition.wait_for", side_effect=AssertionError("it waits")):
            self.assertIsNone(self.Handler()._get_value("global", "1"))

    def test_a_new_process_waits_for_the_addresses_of_the_others(self):
        driver = self.grows()
        host = self.in_thread(self.Handler()._get_value, "global", "rank_0")
        self.Handler()._put_value("global", "rank_1", b"new")
        self.Handler()._put_value("global", "rank_0", b"old")
        self.assertEqual(host(), b"old")
        driver._update_host_assignments(["a", "b", "c"])
        address = self.in_thread(self.Handler()._get_value, "global", "3")
        driver._update_host_assignments(["a"])
        self.assertIsNone(address(), "there is another assignment")

    def test_notifying_a_rank_whose_node_is_gone_holds_nothing_up(self):
        client = self.Client()
        client.hangs = threading.Event()
        client.notify_hosts_updated(0, 2)
        client.hangs.set()

    def test_a_change_is_notified_again_after_a_while(self):
        manager, none, removed, added, mixed = self.Manager(), 0, 1, 2, 3
        for now, found, notified in ((9, none, mixed), (10, added, added), (14, none, none), (15, none, added),
                                     (16, removed, mixed), (20, none, none), (21, none, mixed)):
            manager.updates = [found]
            with mock.patch("time.monotonic", return_value=now):
                self.assertEqual(manager.update_available_hosts(), notified, now)
        # those that are in an assignment are no longer news
        self.Server().init([])
        manager.updates = [removed]
        self.assertEqual(manager.update_available_hosts(), removed)

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
        modules = horovod()
        del modules["horovod.runner.elastic.discovery"].HostManager.order_available_hosts
        with mock.patch.dict(sys.modules, modules), self.assertRaises(AttributeError):
            elastic_driver.install()


if __name__ == "__main__":
    unittest.main()
