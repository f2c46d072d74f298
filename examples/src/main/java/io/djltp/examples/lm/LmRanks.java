package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.examples.train.DeviceOptions;
import io.djltp.examples.train.JobRanks;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** The options that say which ranks train the model, and how they share the work. */
final class LmRanks implements JobRanks {

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes, over which layers are cut (2, or one for"
                            + " each process that a launcher has started, or those of the --mesh).")
    private Integer tp;

    @Option(
            names = "--mesh",
            description =
                    "Sizes of the axes data and tensor, such as 2x2: the batch is cut over 2 groups"
                            + " of ranks, and layers over the 2 ranks of each.")
    private String meshText;

    @Option(
            names = "--sequence-parallel",
            description =
                    "Cut the tokens over the ranks of the axis tensor too, between attention and"
                            + " MLPs, where layers are not cut.")
    boolean sequenceParallel;

    @Mixin private DeviceOptions where = new DeviceOptions();

    private DeviceMesh mesh;

    /** Checks everything that can be checked before anything is read or written. */
    void check() {
        where.check();
        int ranks = DeviceOptions.ranks(tp);
        positive("--tp", ranks);
        mesh =
                meshText == null
                        ? DeviceMesh.of(ParallelMode.TENSOR, ranks)
                        : DeviceOptions.mesh(meshText, tp);
        String subject = describe() + " has " + count() + " ranks, which";
        DeviceOptions.checkShared(count(), subject);
    }

    /** {@inheritDoc} */
    @Override
    public int count() {
        return mesh.getRanks();
    }

    /** Returns the number of ranks over which layers are cut. */
    int tensor() {
        return mesh.isCut(DeviceMesh.TENSOR) ? mesh.getSize(DeviceMesh.TENSOR) : 1;
    }

    /** Returns the number of groups of ranks over which the batch is cut. */
    int data() {
        return mesh.isCut(DeviceMesh.DATA) ? mesh.getSize(DeviceMesh.DATA) : 1;
    }

    /** Returns the option that says it. */
    String describe() {
        return meshText == null ? "--tp " + count() : "--mesh " + meshText;
    }

    /** Returns all options that say how the work is shared. */
    String describeAll() {
        return describe() + (sequenceParallel ? " --sequence-parallel" : "");
    }

    /** Returns the mesh as it was given, or {@code null}. */
    String meshName() {
        return meshText;
    }

    /** {@inheritDoc} */
    @Override
    public DeviceOptions where() {
        return where;
    }

    /** Returns the configuration of the ranks, with the largest norm of all gradients. */
    ParallelConfig config(Job job, float clip) {
        return where.config(job, mesh).optGradientClipNorm(clip).build();
    }
}
