package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** How one process joins a job. */
final class JobBootstrap {

    private static final Logger logger = LoggerFactory.getLogger(JobBootstrap.class);

    private final LaunchEnvironment environment;
    private final JobOptions options;
    private final JobContext local;
    private ServerSocketChannel server;

    JobBootstrap(LaunchEnvironment environment, JobOptions options, ServerSocketChannel bound) {
        this.environment = environment;
        this.options = options;
        JobState state = new JobState();
        local =
                new JobContext(
                        environment, options, state, new Status(state::isOver), new JobLoop());
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
            throw failure("Process %d was interrupted while it joined the job", e);
        } catch (IOException e) {
            throw failure("Process %d cannot join the job: " + ErrorTexts.reason(e), e);
        } finally {
            if (!joined) {
                local.state().close();
                local.loop().close();
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
            List<JobMember> alone =
                    List.of(Hello.own(local, InetAddress.getLoopbackAddress()).member());
            return job(alone, options.getTimeout(), new MasterControl(alone, Map.of(), local));
        }
        MasterAddress rendezvous = new MasterAddress(environment, options.getSecret(), server);
        server = rendezvous.listen();
        logger.info(
                "Waiting for {} at {}",
                ErrorTexts.count(environment.processes() - 1, "process", "processes"),
                ErrorTexts.address((InetSocketAddress) server.getLocalAddress()));
        Registration registration = new Registration(local, server, rendezvous.tls());
        MasterControl control = registration.await();
        return job(registration.members(), options.getTimeout(), control);
    }

    private Job joinMaster() throws InterruptedException {
        MemberControl control = new MemberControl(local);
        Message.Welcome said =
                control.join(new MasterAddress(environment, options.getSecret(), null));
        return job(said.members(), Duration.ofMillis(said.timeoutMillis()), control);
    }

    private Job job(List<JobMember> members, Duration timeout, ControlPlane control) {
        return new Job(environment.process(), members, timeout, local, control);
    }

    private JobFailedException failure(String text, Exception cause) {
        return new JobFailedException(text.formatted(environment.process()), -1, -1, cause);
    }
}
