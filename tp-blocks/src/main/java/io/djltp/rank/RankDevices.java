package io.djltp.rank;

import ai.djl.Device;

import io.djltp.job.Job;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * Which devices of DJL's training configuration the ranks of a process compute on. DJL's convention
 * is that training uses all GPUs of the machine.
 */
final class RankDevices {

    private static final Logger logger = LoggerFactory.getLogger(RankDevices.class);

    private RankDevices() {}

    /**
     * Returns the devices of the ranks of this process.
     *
     * @param training the devices of the training configuration
     * @param job the job, or {@code null} if this process is alone
     * @param localRanks the ranks of this process
     * @return one device for each rank
     */
    static List<Device> choose(Device[] training, @Nullable Job job, int localRanks) {
        int before = job == null ? 0 : Processors.ranksOfThisMachine(job, job.getProcess());
        return choose(training, before, localRanks);
    }

    /**
     * Returns the devices of the ranks of this process.
     *
     * @param training the devices of the training configuration: as many GPUs as ranks, or all GPUs
     *     of a machine that its processes share in their order
     * @param before the ranks of the processes that come before this one on its machine
     * @param localRanks the ranks of this process
     * @return one device for each rank
     */
    static List<Device> choose(Device[] training, int before, int localRanks) {
        long gpus = Arrays.stream(training).filter(Device::isGpu).count();
        if (gpus == 0) {
            return Collections.nCopies(localRanks, Device.cpu());
        }
        if (gpus < training.length) {
            throw new IllegalArgumentException(
                    "The training configuration has GPUs and CPUs, "
                            + Arrays.toString(training)
                            + ": all ranks compute on devices of one kind, name those with"
                            + " optDevices");
        }
        // as many as ranks: the launcher or the user has given each process GPUs of its own
        int first = training.length == localRanks ? 0 : before;
        if (training.length < first + localRanks) {
            throw new IllegalArgumentException(tooFew(training, first, localRanks));
        }
        return List.of(training).subList(first, first + localRanks);
    }

    private static String tooFew(Device[] training, int first, int localRanks) {
        return (first + localRanks)
                + " ranks"
                + (first > 0 ? " of this machine" : "")
                + " need as many GPUs, and the training configuration has "
                + training.length
                + " ("
                + Arrays.toString(training)
                + "): use fewer ranks (setRanks), more GPUs, or the CPU with"
                + " TrainingConfig.optDevices(Device.cpu())";
    }

    /** Says so where the devices that were named are not those of the training configuration. */
    static void logDifference(List<Device> named, Device... training) {
        boolean cpus =
                named.stream().noneMatch(Device::isGpu)
                        && Arrays.stream(training).noneMatch(Device::isGpu);
        if (!cpus && !named.equals(List.of(training))) {
            logger.info(
                    "The ranks compute on {}, as ParallelConfig says, not on {} of the training"
                            + " configuration",
                    named,
                    Arrays.toString(training));
        }
    }
}
