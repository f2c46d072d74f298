package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
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

    private static final int MAX_MEMBER = 8192;

    private final LaunchEnvironment environment;
    private final JobOptions options;
    private final ServerSocketChannel bound;
    private final JobState state = new JobState();
    private final RankConnections connections = new RankConnections(state);
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
                Rendezvous rendezvous = new Rendezvous(environment, options.getSecret(), bound);
                job =
                        environment.process() == 0
                                ? joinAsMaster(rendezvous)
                                : joinMaster(rendezvous);
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
                connections.close();
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

    private Job joinAlone() throws IOException {
        Dialer.closeQuietly(bound);
        Hello own = hello("", 0);
        byte[] secret = options.getSecret() == null ? Proof.nonce() : options.getSecret();
        connections.start(Proof.meshKey(secret, Proof.nonce()), options.getTimeout(), List.of(own));
        return new Job(0, List.of(own.member()), state, new SoloControl(state), connections);
    }

    private Job joinAsMaster(Rendezvous rendezvous) throws IOException, InterruptedException {
        try (Cleanup cleanup = new Cleanup()) {
            ServerSocketChannel server = rendezvous.listen();
            cleanup.add(() -> Dialer.closeQuietly(server));
            InetAddress address = server.socket().getInetAddress();
            InetSocketAddress meshAddress = connections.listen(address);
            Hello own = hello(address.getHostAddress(), meshAddress.getPort());
            Registration registration = new Registration(own, options, status);
            MemberAcceptor acceptor =
                    new MemberAcceptor(server, rendezvous.controlKey(), registration);
            cleanup.add(acceptor::close);
            acceptor.start("accept");
            logger.info("Waiting for {} processes at {}", own.processes() - 1, rendezvous.place());
            awaitAll(registration, acceptor);
            Job job = start(rendezvous.secret(), registration, acceptor);
            cleanup.keep();
            return job;
        }
    }

    private void awaitAll(Registration registration, MemberAcceptor acceptor)
            throws InterruptedException {
        String refusal;
        try {
            refusal = registration.await(deadline);
        } catch (InterruptedException e) {
            registration.refuse("process 0 was interrupted while it waited for the others");
            throw e;
        }
        if (refusal != null) {
            registration.refuse(refusal);
            long strangers = acceptor.wrongKeys();
            String note =
                    strangers == 0 ? "" : " (%d attempts had another secret)".formatted(strangers);
            throw failure(refusal + note, null);
        }
    }

    private Job start(byte[] secret, Registration registration, MemberAcceptor acceptor)
            throws IOException {
        List<Hello> hellos = registration.hellos();
        Link[] links = registration.links();
        List<JobMember> members = hellos.stream().map(Hello::member).toList();
        byte[] nonce = Proof.nonce();
        connections.start(Proof.meshKey(secret, nonce), options.getTimeout(), hellos);
        MasterControl control = new MasterControl(members, links, options, state, status, acceptor);
        if (!registration.start(control)) {
            String text = "A process ended just when all had come";
            registration.refuse(text);
            throw failure(text, null);
        }
        for (Link link : Arrays.asList(links).subList(1, links.length)) {
            link.send(welcome(nonce, hellos, link).encode());
        }
        control.start();
        return new Job(0, members, state, control, connections);
    }

    /** Returns the welcome for a member: it reaches the master's ranks where it reached it. */
    private Welcome welcome(byte[] nonce, List<Hello> hellos, Link link) throws IOException {
        InetSocketAddress here = (InetSocketAddress) link.channel().getLocalAddress();
        List<Hello> all = new ArrayList<>(hellos);
        all.set(0, all.get(0).at(here.getAddress().getHostAddress(), all.get(0).meshPort()));
        return new Welcome(nonce, options.getTimeout(), options.getHeartbeatTimeout(), all);
    }

    private Job joinMaster(Rendezvous rendezvous) throws IOException, InterruptedException {
        try (Cleanup cleanup = new Cleanup()) {
            Hello own = hello("", 0);
            SocketChannel channel =
                    rendezvous.dial(
                            deadline, options.getTimeout(), dialled -> introduce(own, dialled));
            cleanup.add(() -> Dialer.closeQuietly(channel));
            MemberControl control = new MemberControl(own, rendezvous.place(), state, status);
            long limit = (long) own.processes() * (Job.MAX_EXCHANGE + MAX_MEMBER);
            Link link =
                    new Link(
                            channel, 0, limit, options.getHeartbeatTimeout(), status::get, control);
            Welcome welcome = control.join(link, options);
            connections.start(
                    Proof.meshKey(rendezvous.secret(), welcome.nonce()),
                    welcome.timeout(),
                    welcome.members());
            cleanup.keep();
            return new Job(own.process(), welcome.jobMembers(), state, control, connections);
        }
    }

    /** Returns what this process says: its ranks are reached where it reached the master from. */
    private byte[] introduce(Hello own, SocketChannel channel) throws IOException {
        InetSocketAddress here = (InetSocketAddress) channel.getLocalAddress();
        InetSocketAddress listens = connections.listen(here.getAddress());
        return own.at(here.getAddress().getHostAddress(), listens.getPort()).encode();
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
