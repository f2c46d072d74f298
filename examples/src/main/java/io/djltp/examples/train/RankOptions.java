package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.util.Locale;

/** The options that say which ranks train, where, and how they share the work. */
final class RankOptions implements JobRanks {

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes (2, or one for each process that a launcher"
                            + " has started, or those of the --mesh).")
    private Integer tp;

    @Option(
            names = "--mode",
            description =
                    "tensor: head cut, all ranks on the same batch; data: batch cut; mixed: body"
                            + " data parallel, head cut (mixed, if there is no --mesh).")
    private ParallelMode mode;

    @Option(
            names = "--mesh",
            description =
                    "Takes the place of --mode: sizes of the axes data and tensor, such as 2x3:"
                            + " the batch is cut over 2 groups of ranks, and the head over the 3"
                            + " ranks of each.")
    private String meshText;

    @Mixin DeviceOptions where = new DeviceOptions();

    @Option(
            names = "--drift-check",
            description =
                    "Compare the replicas of parameters every so many steps; 0 for never (after"
                            + " steps 1, 2, 4, 8, ... and at the end).")
    Integer driftCheckSteps;

    DeviceMesh mesh;

    /** Checks everything that can be checked before anything is read or written. */
    void check() {
        mesh = meshText == null ? meshOfMode() : checkedMesh();
        where.check();
        if (driftCheckSteps != null && driftCheckSteps < 0) {
            throw new BadInputException("--drift-check must be 0 or more, not " + driftCheckSteps);
        }
        DeviceOptions.checkShared(
                count(),
                meshText == null
                        ? "--tp " + count() + " ranks"
                        : "The --mesh " + meshText + " of " + count() + " ranks");
    }

    private DeviceMesh meshOfMode() {
        mode = mode == null ? ParallelMode.MIXED : mode;
        int ranks = DeviceOptions.ranks(tp);
        DeviceOptions.positive("--tp", ranks);
        return DeviceMesh.of(mode, ranks);
    }

    private DeviceMesh checkedMesh() {
        if (mode != null) {
            throw new BadInputException(
                    "--mesh "
                            + meshText
                            + " and --mode "
                            + lowerCase(mode)
                            + " both say how the ranks share the work: use one of the two");
        }
        return DeviceOptions.mesh(meshText, tp);
    }

    /** Refuses a batch that leaves ranks without a row. */
    void checkBatch(int batch) {
        int sharing = mesh.isCut(DeviceMesh.DATA) ? mesh.getSize(DeviceMesh.DATA) : 1;
        if (batch < sharing) {
            throw new BadInputException(
                    "--batch "
                            + batch
                            + " is smaller than the "
                            + sharing
                            + (meshText == null ? " ranks" : " groups of ranks")
                            + " that share it "
                            + (meshText == null
                                    ? "in " + lowerCase(mode) + " mode"
                                    : "on --mesh " + meshText)
                            + ": use --batch "
                            + sharing
                            + " or more, or fewer ranks ("
                            + (meshText == null ? "--tp" : "--mesh")
                            + ")");
        }
    }

    /** {@inheritDoc} */
    @Override
    public int count() {
        return mesh.getRanks();
    }

    /** Returns whether the head has replicas: it is not cut over all ranks. */
    boolean hasReplicas() {
        return mesh.isCut(DeviceMesh.DATA) && !mesh.isOverlaid();
    }

    /** Returns how many times the head is there, over all ranks. */
    int replicas() {
        return hasReplicas() ? mesh.getSize(DeviceMesh.DATA) : 1;
    }

    /** Returns the mode, or the mesh. */
    String describe() {
        return meshText == null ? "mode " + lowerCase(mode) : "mesh " + meshText;
    }

    /** Returns the mode as it was given, or {@code null} on a mesh. */
    String modeName() {
        return mode == null ? null : lowerCase(mode);
    }

    /** Returns the mesh as it was given, or {@code null} in a mode. */
    String meshName() {
        return meshText;
    }

    /** {@inheritDoc} */
    @Override
    public DeviceOptions where() {
        return where;
    }

    /** Returns the configuration of the ranks. */
    ParallelConfig config(Job job) {
        ParallelConfig.Builder config = where.config(job, mesh);
        if (driftCheckSteps != null) {
            config.optDriftCheck(driftCheckSteps);
        }
        return config.build();
    }

    static String lowerCase(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }
}
