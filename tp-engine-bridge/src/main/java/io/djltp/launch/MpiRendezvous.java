package io.djltp.launch;

import io.djltp.collective.mpi.MpiEnd;
import io.djltp.collective.mpi.MpiLibrary;
import io.djltp.collective.mpi.MpiWorld;
import io.djltp.environment.JobSecret;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;

/** How the processes meet that {@code mpirun} has started without saying where: through MPI. */
final class MpiRendezvous {

    private static final Logger logger = LoggerFactory.getLogger(MpiRendezvous.class);

    private MpiRendezvous() {}

    /** Starts MPI, which is ended with the process: it cannot be started again. */
    static MpiWorld start() {
        MpiWorld world = MpiWorld.start();
        MpiEnd.withTheProcess(world);
        return world;
    }

    /**
     * Joins a job whose launcher has not said where the processes meet: process 0 tells the others
     * through MPI, and with it a secret.
     */
    static Job join(LaunchEnvironment environment, JobOptions.Builder options) {
        String missing = MpiLibrary.whyNot().orElse(null);
        if (missing != null) {
            throw new IllegalArgumentException(
                    missing + " Or set MASTER_ADDR and MASTER_PORT on all processes.");
        }
        MpiWorld world = start();
        ServerSocketChannel bound = null;
        byte[] message = new byte[0];
        if (environment.process() == 0) {
            String host = address();
            bound = MasterPort.bindEphemeral(host);
            byte[] secret = JobSecret.draw();
            String text =
                    host + " " + MasterPort.getPort(bound) + " " + HexFormat.of().formatHex(secret);
            message = text.getBytes(StandardCharsets.UTF_8);
        }
        String[] parts = new String(world.broadcast(message), StandardCharsets.UTF_8).split(" ");
        logger.debug("The processes meet at {}:{}", parts[0], parts[1]);
        LaunchEnvironment complete =
                new LaunchEnvironment(
                        environment.launcher(),
                        environment.process(),
                        environment.processes(),
                        environment.localProcess(),
                        parts[0],
                        Integer.parseInt(parts[1]));
        return Job.join(
                complete, options.optSecret(HexFormat.of().parseHex(parts[2])).build(), bound);
    }

    /** Returns the address at which the other processes reach this one. */
    private static String address() {
        Map<String, String> environment = System.getenv();
        String local = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE");
        if (local == null || local.equals(environment.get("OMPI_COMM_WORLD_SIZE"))) {
            return InetAddress.getLoopbackAddress().getHostAddress();
        }
        try {
            return NetworkInterface.networkInterfaces()
                    .flatMap(NetworkInterface::inetAddresses)
                    .filter(a -> a instanceof Inet4Address && !a.isLoopbackAddress())
                    .map(InetAddress::getHostAddress)
                    .findFirst()
                    .orElseThrow(MpiRendezvous::noAddress);
        } catch (SocketException e) {
            throw noAddress();
        }
    }

    private static IllegalArgumentException noAddress() {
        return new IllegalArgumentException(
                "This machine has no address but loopback at which other machines could reach it:"
                        + " set MASTER_ADDR and MASTER_PORT");
    }
}
