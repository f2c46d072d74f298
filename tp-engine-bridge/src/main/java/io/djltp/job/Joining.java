package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;

/** How one process joins a job. */
final class Joining {

    private static final Logger logger = LoggerFactory.getLogger(Joining.class);

    private static final int MAX_MEMBER = 8192;
    private static final long MAX_MESSAGE = Job.MAX_EXCHANGE + 64 * 1024;

    private final LaunchEnvironment environment;
    private final JobOptions options;
    private final JobState state = new JobState();
    private final JobLoop loop = new JobLoop();
    private final Status status = new Status(state::isOver);
    private ServerSocketChannel server;

    Joining(LaunchEnvironment environment, JobOptions options, ServerSocketChannel bound) {
        this.environment = environment;
        this.options = options;
        server = bound;
    }

    Job join() {
        boolean joined = false;
        try {
            checkRanks();
            Job job = environment.process() == 0 ? joinAsMaster() : joinMaster();
            joined = true;
            return job;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            String text = "Process %d was interrupted while it joined the job";
            throw failure(text.formatted(environment.process()), e);
        } catch (IOException e) {
            String text = "Process %d cannot join the job: %s";
            throw failure(text.formatted(environment.process(), Texts.reason(e)), e);
        } finally {
            if (!joined) {
                state.close();
                loop.close();
                closeServer();
            }
        }
    }

    private void closeServer() {
        try {
            if (server != null) {
                server.close();
            }
        } catch (IOException e) {
            logger.debug("The port of process 0 cannot be closed", e);
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

    private Job joinAsMaster() throws IOException, InterruptedException {
        if (environment.processes() == 1) {
            closeServer();
            InetAddress here = InetAddress.getLoopbackAddress();
            List<JobMember> alone = List.of(own(here).member(here.getHostAddress()));
            return job(alone, options.getTimeout(), control(alone, Map.of()));
        }
        Rendezvous rendezvous = new Rendezvous(environment, options.getSecret(), server);
        server = rendezvous.listen();
        Master master = new Master(own(server.socket().getInetAddress()), rendezvous.tls());
        logger.info(
                "Waiting for {} processes at {}",
                environment.processes() - 1,
                Texts.address((InetSocketAddress) server.getLocalAddress()));
        String refusal = master.registration.await();
        if (refusal != null) {
            Link.finish(master.registration.links());
            long strangers = master.door.wrongKeys();
            String note = " (%d attempts had another secret)".formatted(strangers);
            throw failure(refusal + (strangers == 0 ? "" : note), null);
        }
        return job(master.members, options.getTimeout(), master.control);
    }

    /** The master, from the first that comes until all have come. */
    private final class Master {

        private final Registration registration;
        private final Hello own;
        private final Door door;
        private List<JobMember> members;
        private MasterControl control;

        Master(Hello own, JobTls tls) throws IOException {
            this.own = own;
            registration = new Registration(own, options, loop.thread(), this::letIn, this::start);
            status.setHeartbeatTimeout(options.getHeartbeatTimeout());
            Heartbeats heartbeats =
                    new Heartbeats(loop.thread(), registration::links, status, this::silent);
            loop.thread().execute(() -> heartbeats.start(options.getHeartbeatTimeout()));
            door =
                    new Door(
                            loop,
                            server,
                            channel ->
                                    JobLoop.handlers(
                                            TlsHandler.ofServer(tls),
                                            new Link(channel, MAX_MESSAGE, registration)));
        }

        private void letIn(Link link) {
            door.letIn(link.channel());
        }

        private void silent(Link link) {
            if (control != null) {
                control.silent(link);
            }
        }

        /** Starts the job, as soon as the last has come. */
        private void start() {
            Collection<Link> links = registration.byNumber().values();
            members = members(own.address());
            control = control(members, registration.byNumber());
            for (Link link : links) {
                // it reaches the master's ranks where it reached the master
                String here = link.channel().localAddress().getAddress().getHostAddress();
                long timeout = options.getTimeout().toMillis();
                long heartbeat = options.getHeartbeatTimeout().toMillis();
                link.touch();
                link.send(
                        Message.Type.WELCOME,
                        new Message.Welcome(timeout, heartbeat, members(here)));
            }
        }

        private List<JobMember> members(String ownAddress) {
            List<JobMember> all = new ArrayList<>(List.of(own.member(ownAddress)));
            for (Link link : registration.byNumber().values()) {
                all.add(link.hello().member(link.hello().address()));
            }
            return all;
        }
    }

    private MasterControl control(List<JobMember> members, Map<Integer, Link> links) {
        return new MasterControl(members, links, loop.thread(), options, state, status);
    }

    private Job joinMaster() throws InterruptedException {
        Rendezvous rendezvous = new Rendezvous(environment, options.getSecret(), null);
        MemberControl control = new MemberControl(options, state, status);
        long limit = (long) environment.processes() * (Job.MAX_EXCHANGE + MAX_MEMBER);
        Link link =
                new Dialer(environment, rendezvous, loop, limit, control)
                        .dial(options.getTimeout());
        String place =
                Texts.address(
                        environment.masterAddress(), link.channel().remoteAddress().getPort());
        Message.Welcome said =
                control.join(link, place, own(link.channel().localAddress().getAddress()));
        status.setHeartbeatTimeout(Duration.ofMillis(said.heartbeatMillis()));
        return job(said.members(), Duration.ofMillis(said.timeoutMillis()), control);
    }

    private Job job(List<JobMember> members, Duration timeout, Control control) {
        return new Job(environment.process(), members, timeout, state, status, control, loop);
    }

    private Hello own(InetAddress address) {
        return Hello.own(environment.process(), environment.processes(), options, address);
    }

    private static JobFailedException failure(String text, Exception cause) {
        return new JobFailedException(text, -1, -1, cause);
    }
}
