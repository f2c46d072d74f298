package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** The options that say which ranks train, where, and how they share the work. */
public final class RankOptions {

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes (2, or one for each process that a launcher"
                            + " has started, or those of the --mesh).")
    private Integer tp;

    @Option(
            names = "--mesh",
            description =
                    "Sizes of the axes data and tensor, such as 2x3: the batch is cut over 2 groups"
                            + " of ranks, and layers and heads over the 3 ranks of each.")
    private String meshText;

    /** Where they compute. */
    @Mixin final DeviceOptions where = new DeviceOptions();

    private DeviceMesh mesh;

    /** Creates the options, which are set by the command line. */
    public RankOptions() {}

    /**
     * Checks everything that can be checked before anything is read or written.
     *
     * @param mode how the ranks share the work if there is no {@code --mesh}
     */
    public void check(ParallelMode mode) {
        where.check();
        if (meshText == null) {
            int ranks = DeviceOptions.ranks(tp);
            DeviceOptions.positive("--tp", ranks);
            mesh = DeviceMesh.of(mode, ranks);
        } else {
            mesh = DeviceOptions.mesh(meshText, tp);
        }
        DeviceOptions.checkShared(
                count(),
                meshText == null
                        ? "--tp " + count() + " ranks"
                        : "The --mesh " + meshText + " of " + count() + " ranks");
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int count() {
        return mesh.getRanks();
    }

    /**
     * Returns the number of ranks along an axis of the mesh.
     *
     * @param axis the axis
     * @return the number of ranks, 1 if nothing is cut over them
     */
    public int size(String axis) {
        return mesh.isCut(axis) ? mesh.getSize(axis) : 1;
    }

    /** Returns how many times the head is there, over all ranks. */
    int replicas() {
        return mesh.isOverlaid() ? 1 : size(DeviceMesh.DATA);
    }

    /**
     * Returns the option that says how the work is shared.
     *
     * @return the option and its value
     */
    public String describe() {
        return meshText == null ? "--tp " + count() : "--mesh " + meshText;
    }

    /**
     * Returns the mesh as it was given.
     *
     * @return the text, or {@code null} without {@code --mesh}
     */
    public String meshName() {
        return meshText;
    }

    /**
     * Refuses a batch that leaves ranks without a row.
     *
     * @param batch the rows of a batch
     * @param modeName the mode if there is no {@code --mesh}
     */
    public void checkBatch(int batch, String modeName) {
        int sharing = size(DeviceMesh.DATA);
        if (batch < sharing) {
            boolean ofMode = meshText == null;
            throw new BadInputException(
                    "--batch %d is smaller than the %d %s that share it %s: use --batch %d or more,"
                            + " or fewer ranks (%s)",
                    batch,
                    sharing,
                    ofMode ? "ranks" : "groups of ranks",
                    ofMode ? "in " + modeName + " mode" : "on " + describe(),
                    sharing,
                    ofMode ? "--tp" : "--mesh");
        }
    }

    /**
     * Begins the configuration of the ranks.
     *
     * @param job the job, or {@code null}
     * @return the configuration, to be built
     */
    public ParallelConfig.Builder config(Job job) {
        return where.config(job, mesh);
    }
}
