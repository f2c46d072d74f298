package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.NetworkInterface;
import java.net.UnknownHostException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;

/** How one process joins a job. */
final class Joining {

    private static final Logger logger = LoggerFactory.getLogger(Joining.class);

    private static final String REFUSED =
            "Process %d was refused by process 0 at %s for %s (%s): is TP_SECRET the same on all"
                    + " processes?";
    private static final String UNREACHABLE =
            "Process %d cannot reach process 0 at %s within %s (%s): see whether process 0 was"
                    + " started there, and MASTER_ADDR and MASTER_PORT are the same on all"
                    + " processes";
    private static final int MAX_MEMBER = 8192;

    private final LaunchEnvironment environment;
    private final JobOptions options;
    private final ServerSocketChannel bound;
    private final JobState state = new JobState();
    private final Mesh mesh = new Mesh(state);
    private final Status status = new Status(state::isOver);
    private final long deadline;

    Joining(LaunchEnvironment environment, JobOptions options, ServerSocketChannel bound) {
        this.environment = environment;
        this.options = options;
        this.bound = bound;
        deadline = System.nanoTime() + options.getTimeout().toNanos();
    }

    Job join() {
        checkRanks();
        boolean joined = false;
        try {
            Job job;
            if (environment.processes() == 1) {
                job = joinAlone();
            } else {
                checkMaster();
                job = environment.process() == 0 ? joinAsMaster() : joinMaster();
            }
            joined = true;
            return job;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            String text = "Process %d was interrupted while it joined the job";
            throw failure(text.formatted(environment.process()), e);
        } catch (IOException e) {
            String text = "Process %d cannot join the job: %s";
            throw failure(text.formatted(environment.process(), Dialer.reason(e)), e);
        } finally {
            if (!joined) {
                state.close();
                mesh.close();
                Dialer.closeQuietly(bound);
            }
        }
    }

    private void checkRanks() {
        int processes = environment.processes();
        if (options.getRanks() % processes != 0) {
            throw new IllegalArgumentException(
                    "%d ranks cannot be shared evenly by %d processes: use a multiple of %d ranks"
                            .formatted(options.getRanks(), processes, processes));
        }
    }

    private void checkMaster() {
        boolean master = environment.process() == 0;
        if (bound == null || !master) {
            if (environment.masterAddress() == null) {
                throw new IllegalArgumentException(
                        "The address of process 0 is not known: set MASTER_ADDR to its host");
            }
            if (environment.masterPort() == 0) {
                throw new IllegalArgumentException(
                        "The port of process 0 is not known: set MASTER_PORT to a free port of"
                                + " its host");
            }
        }
        if (options.getSecret() == null && !isLoopback()) {
            throw new IllegalArgumentException(
                    ("A job at %s can be reached from other machines and needs a secret: set"
                                    + " TP_SECRET to the same long random text on all processes")
                            .formatted(place()));
        }
    }

    private boolean isLoopback() {
        try {
            if (bound != null && environment.process() == 0) {
                InetAddress address = bound.socket().getInetAddress();
                return address != null && address.isLoopbackAddress();
            }
            return InetAddress.getByName(environment.masterAddress()).isLoopbackAddress();
        } catch (UnknownHostException e) {
            // not known yet, but surely none of this machine's own
            return false;
        }
    }

    private Job joinAlone() throws IOException {
        Dialer.closeQuietly(bound);
        Hello own = hello("", 0);
        byte[] secret = options.getSecret() == null ? Proof.nonce() : options.getSecret();
        mesh.start(Proof.meshKey(secret, Proof.nonce()), options.getTimeout(), List.of(own));
        return new Job(0, List.of(own.member()), state, new SoloControl(state), mesh);
    }

    private Job joinAsMaster() throws IOException, InterruptedException {
        try (Cleanup cleanup = new Cleanup()) {
            ServerSocketChannel server = bound == null ? bind() : bound;
            cleanup.add(() -> Dialer.closeQuietly(server));
            InetAddress address = server.socket().getInetAddress();
            InetSocketAddress meshAddress = mesh.listen(address);
            Hello own = hello(address.getHostAddress(), meshAddress.getPort());
            Gathering gathering = new Gathering(own, options, status);
            byte[] key = Proof.controlKey(options.getSecret());
            Doorkeeper door = new Doorkeeper(server, key, gathering);
            cleanup.add(door::close);
            door.start("accept");
            logger.info("Waiting for {} processes at {}", own.processes() - 1, place());
            awaitAll(gathering, door);
            Job job = start(gathering, door);
            cleanup.keep();
            return job;
        }
    }

    private void awaitAll(Gathering gathering, Doorkeeper door) throws InterruptedException {
        String refusal;
        try {
            refusal = gathering.await(deadline);
        } catch (InterruptedException e) {
            gathering.refuse("process 0 was interrupted while it waited for the others");
            throw e;
        }
        if (refusal != null) {
            gathering.refuse(refusal);
            long strangers = door.wrongKeys();
            String note =
                    strangers == 0 ? "" : " (%d attempts had another secret)".formatted(strangers);
            throw failure(refusal + note, null);
        }
    }

    private Job start(Gathering gathering, Doorkeeper door) throws IOException {
        List<Hello> hellos = gathering.hellos();
        Link[] links = gathering.links();
        List<JobMember> members = hellos.stream().map(Hello::member).toList();
        byte[] nonce = Proof.nonce();
        mesh.start(Proof.meshKey(options.getSecret(), nonce), options.getTimeout(), hellos);
        MasterControl control = new MasterControl(members, links, options, state, status, door);
        if (!gathering.start(control)) {
            String text = "A process ended just when all had come";
            gathering.refuse(text);
            throw failure(text, null);
        }
        for (Link link : Arrays.asList(links).subList(1, links.length)) {
            link.send(welcome(nonce, hellos, link).encode());
        }
        control.start();
        return new Job(0, members, state, control, mesh);
    }

    /** Returns the welcome for a member: it reaches the master's ranks where it reached it. */
    private Welcome welcome(byte[] nonce, List<Hello> hellos, Link link) throws IOException {
        InetSocketAddress here = (InetSocketAddress) link.channel().getLocalAddress();
        List<Hello> all = new ArrayList<>(hellos);
        all.set(0, all.get(0).at(here.getAddress().getHostAddress(), all.get(0).meshPort()));
        return new Welcome(nonce, options.getTimeout(), options.getHeartbeatTimeout(), all);
    }

    private Job joinMaster() throws IOException, InterruptedException {
        try (Cleanup cleanup = new Cleanup()) {
            Hello own = hello("", 0);
            SocketChannel channel = dial(own);
            cleanup.add(() -> Dialer.closeQuietly(channel));
            MemberControl control = new MemberControl(own, place(), state, status);
            long limit = (long) own.processes() * (Job.MAX_EXCHANGE + MAX_MEMBER);
            Link link =
                    new Link(
                            channel, 0, limit, options.getHeartbeatTimeout(), status::get, control);
            Welcome welcome = control.join(link, options);
            mesh.start(
                    Proof.meshKey(options.getSecret(), welcome.nonce()),
                    welcome.timeout(),
                    welcome.members());
            cleanup.keep();
            return new Job(own.process(), welcome.jobMembers(), state, control, mesh);
        }
    }

    private SocketChannel dial(Hello own) throws InterruptedException {
        Dialer dialer =
                new Dialer(
                        environment.masterAddress(),
                        environment.masterPort(),
                        Proof.controlKey(options.getSecret()),
                        channel -> introduce(own, channel));
        try {
            return dialer.dial(deadline, () -> false);
        } catch (IOException e) {
            String text = dialer.isRefused() ? REFUSED : UNREACHABLE;
            String time = Texts.time(options.getTimeout());
            throw failure(text.formatted(own.process(), place(), time, Dialer.reason(e)), e);
        }
    }

    /** Returns what this process says: its ranks are reached where it reached the master from. */
    private byte[] introduce(Hello own, SocketChannel channel) throws IOException {
        InetSocketAddress here = (InetSocketAddress) channel.getLocalAddress();
        InetSocketAddress listens = mesh.listen(here.getAddress());
        return own.at(here.getAddress().getHostAddress(), listens.getPort()).encode();
    }

    private ServerSocketChannel bind() {
        int port = environment.masterPort();
        try {
            return MasterPort.bind(localAddress(), port);
        } catch (IOException e) {
            String text =
                    "Process 0 cannot listen at %s (%s): end what uses port %d, or set MASTER_PORT"
                            + " to a free port on all processes";
            throw failure(text.formatted(place(), Dialer.reason(e), port), e);
        }
    }

    /** Returns the master's address if it is one of this machine, or else {@code null} for all. */
    private InetAddress localAddress() throws IOException {
        try {
            InetAddress address = InetAddress.getByName(environment.masterAddress());
            boolean local =
                    address.isLoopbackAddress()
                            || NetworkInterface.getByInetAddress(address) != null;
            return local ? address : null;
        } catch (UnknownHostException e) {
            // the name of a service, known only to those who look from elsewhere
            return null;
        }
    }

    private Hello hello(String meshHost, int meshPort) {
        return new Hello(
                ThreadLocalRandom.current().nextLong(),
                options.getVersion(),
                environment.process(),
                environment.processes(),
                options.getRanks(),
                hostName(),
                ProcessHandle.current().pid(),
                meshHost,
                meshPort);
    }

    private static String hostName() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            // a machine that does not know itself
            return "unknown-host";
        }
    }

    private String place() {
        if (bound != null && environment.process() == 0) {
            return Texts.address((InetSocketAddress) bound.socket().getLocalSocketAddress());
        }
        return Texts.address(environment.masterAddress(), environment.masterPort());
    }

    private JobFailedException failure(String text, Exception cause) {
        return new JobFailedException(text, -1, -1, cause);
    }

    /** Undoes what was done, unless all of it succeeds. */
    private static final class Cleanup implements AutoCloseable {

        private final List<Runnable> undo = new ArrayList<>();

        void add(Runnable task) {
            undo.add(task);
        }

        void keep() {
            undo.clear();
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            undo.forEach(Runnable::run);
        }
    }
}
