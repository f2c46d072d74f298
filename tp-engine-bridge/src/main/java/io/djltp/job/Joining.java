package io.djltp.job;

import io.netty.channel.ChannelHandler;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.stream.ChunkedWriteHandler;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** How one process joins a job. */
final class Joining {

    private static final Logger logger = LoggerFactory.getLogger(Joining.class);

    private static final int MAX_MEMBER = 8192;
    private static final long MAX_MESSAGE = Job.MAX_EXCHANGE + 64 * 1024;

    private final LaunchEnvironment environment;
    private final JobOptions options;
    private final ServerSocketChannel bound;
    private final JobState state = new JobState();
    private final JobLoop loop = new JobLoop();
    private final RankConnections connections = new RankConnections(state, loop);
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
                loop.close();
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
        connections.start(options.getTimeout(), List.of(own));
        return job(own.process(), List.of(own.member()), new SoloControl(state));
    }

    private Job joinAsMaster(Rendezvous rendezvous) throws IOException, InterruptedException {
        ServerSocketChannel server = rendezvous.listen();
        try {
            InetAddress address = server.socket().getInetAddress();
            InetSocketAddress meshAddress = connections.listen(address);
            Hello own = hello(address.getHostAddress(), meshAddress.getPort());
            Master master = new Master(own);
            JobTls tls = rendezvous.tls();
            Door door =
                    new Door(
                            loop,
                            server,
                            channel ->
                                    handlers(
                                            TlsHandler.ofServer(tls),
                                            new Link(channel, MAX_MESSAGE, master.registration)));
            master.open(door);
            logger.info("Waiting for {} processes at {}", own.processes() - 1, rendezvous.place());
            String refusal = master.registration.await(loop.get(), deadline);
            if (refusal != null) {
                long strangers = door.wrongKeys();
                String note = " (%d attempts had another secret)".formatted(strangers);
                throw failure(refusal + (strangers == 0 ? "" : note), null);
            }
            connections.start(options.getTimeout(), master.registration.hellos());
            return job(0, master.control.members(), master.control);
        } catch (IOException | RuntimeException | InterruptedException e) {
            Dialer.closeQuietly(server);
            throw e;
        }
    }

    /** The master, from the first that comes until all have come. */
    private final class Master {

        private final Registration registration;
        private final Heartbeats heartbeats;
        private Door door;
        private MasterControl control;

        Master(Hello own) {
            registration =
                    new Registration(own, options, link -> door.letIn(link.channel()), this::start);
            heartbeats = new Heartbeats(loop.get(), registration::links, status::get, this::silent);
        }

        void open(Door opened) {
            door = opened;
            status.setHeartbeatTimeout(options.getHeartbeatTimeout());
            loop.get().execute(() -> heartbeats.start(options.getHeartbeatTimeout()));
        }

        private void silent(Link link) {
            if (control != null) {
                control.silent(link);
            }
        }

        /** Starts the job, as soon as the last has come. */
        private void start() {
            List<Hello> hellos = registration.hellos();
            List<JobMember> members = hellos.stream().map(Hello::member).toList();
            List<Link> links = registration.links();
            control = new MasterControl(members, links, loop.get(), options, state, status);
            for (Link link : links) {
                // it reaches the master's ranks where it reached the master
                List<Hello> all = new ArrayList<>(hellos);
                String here = link.channel().localAddress().getAddress().getHostAddress();
                all.set(0, all.get(0).at(here, all.get(0).meshPort()));
                long timeout = options.getTimeout().toMillis();
                long heartbeat = options.getHeartbeatTimeout().toMillis();
                Welcome welcome = new Welcome(timeout, heartbeat, all);
                link.touch();
                link.send(new Message(Message.Type.WELCOME, welcome));
            }
        }
    }

    private Job joinMaster(Rendezvous rendezvous) throws IOException, InterruptedException {
        JobTls tls = rendezvous.tls();
        MemberControl control = new MemberControl(options, state, status);
        Hello own = hello("", 0); // before it connects: a machine may take long to find its name
        Welcome welcome = null;
        while (welcome == null) {
            Link link =
                    rendezvous.dial(
                            deadline,
                            options.getTimeout(),
                            (channel, until) -> shake(tls, control, channel, until));
            if (own.meshPort() == 0) {
                InetAddress here = link.channel().localAddress().getAddress();
                own = own.at(here.getHostAddress(), connections.listen(here).getPort());
            }
            rendezvous.found(link.channel().remoteAddress().getPort());
            welcome = control.join(link, rendezvous.place(), own);
        }
        connections.start(welcome.timeout(), welcome.members());
        return job(own.process(), welcome.jobMembers(), control);
    }

    private Link shake(JobTls tls, MemberControl control, SocketChannel connected, long until)
            throws IOException, InterruptedException {
        long limit = (long) environment.processes() * (Job.MAX_EXCHANGE + MAX_MEMBER);
        TlsHandler handler = TlsHandler.ofClient(tls);
        NioSocketChannel channel = new NioSocketChannel(connected);
        Link link = new Link(channel, limit, control);
        channel.pipeline().addLast(handlers(handler, link));
        loop.serve(channel);
        try {
            handler.complete().get(until - System.nanoTime(), TimeUnit.NANOSECONDS);
            return link;
        } catch (TimeoutException e) {
            throw new SocketTimeoutException("no answer in time");
        } catch (ExecutionException e) {
            if (handler.hasOtherKey()) {
                throw new Dialer.RefusedException();
            }
            if (e.getCause() instanceof EOFException end) {
                throw end;
            }
            throw new IOException(
                    "what listens there is no process of a job, or has another version of this"
                            + " library",
                    e);
        }
    }

    private static ChannelHandler[] handlers(TlsHandler tls, Link link) {
        // parts of large messages go to TLS one by one, as fast as the peer takes them
        return new ChannelHandler[] {tls, new ChunkedWriteHandler(), link};
    }

    private Job job(int process, List<JobMember> members, Control control) {
        return new Job(process, members, state, control, connections, loop);
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
}
