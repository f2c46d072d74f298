package io.djltp.internal.gradient;

import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.rank.DeviceMesh;

import org.jspecify.annotations.Nullable;

import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Over which ranks the gradient of each replicated parameter is summed in the present step. It
 * follows from how the parameter was used in the passes of the step, never from its place in the
 * tree of blocks.
 */
public final class GradientGroups {

    private final ParallelParameters parameters;
    private final Map<Parameter, PartialAxes> partial = new IdentityHashMap<>();
    private final Map<Parameter, PartialAxes> last = new IdentityHashMap<>(); // of all steps
    private final Set<Parameter> shared = new HashSet<>(); // whose use all processes know

    /**
     * Creates the groups of a training.
     *
     * @param parameters what the ranks hold
     */
    public GradientGroups(ParallelParameters parameters) {
        this.parameters = parameters;
    }

    /**
     * Adds a pass that is differentiated.
     *
     * @param uses for each parameter that it depends on, over which axes a rank's gradient is a
     *     summand
     * @throws IllegalArgumentException if another pass of the step has used a parameter otherwise
     */
    public void add(Map<Parameter, PartialAxes> uses) {
        uses.forEach(
                (parameter, axes) -> {
                    PartialAxes before = partial.put(parameter, axes);
                    if (before != null && !before.equals(axes)) {
                        throw Errors.argument(
                                "Parameter %s was used with the part of a rank in one of the"
                                        + " passes before trainer.step(), and with the whole in"
                                        + " another: call trainer.step() between the two",
                                parameters.nameOf(parameter));
                    }
                    last.put(parameter, axes);
                });
    }

    /**
     * Tells the other processes of a job how this one has used parameters, and hears of those that
     * it has not used. All of them call it in each step; nothing is sent once all know of all, or
     * where the axes data and tensor are not both there: the usual axes are right then.
     *
     * @param ranks the ranks of this process
     */
    public void share(RankPool ranks) {
        List<Parameter> trained = parameters.getTrained();
        DeviceMesh mesh = ranks.getContext(0).getMesh();
        boolean both = mesh.isCut(DeviceMesh.DATA) && mesh.isCut(DeviceMesh.TENSOR);
        if (!ranks.isDistributed() || !both || mesh.isOverlaid() || shared.containsAll(trained)) {
            return;
        }
        long[] own = trained.stream().mapToLong(p -> code(last.get(p))).toArray();
        long[] all =
                ranks.run(
                                context ->
                                        GatheredNumbers.of(
                                                context.getWorld(),
                                                parameters.getStore(context).getManager(),
                                                own,
                                                "the uses of parameters"))
                        .get(0);
        for (int i = 0; i < all.length; i++) {
            if (all[i] != 0) {
                Parameter parameter = trained.get(i % own.length);
                last.putIfAbsent(parameter, new PartialAxes(all[i] % 2 == 0, all[i] > 2));
                shared.add(parameter);
            }
        }
    }

    /** Returns 0 for a parameter that was not used. */
    private static long code(@Nullable PartialAxes axes) {
        return axes == null ? 0 : 1 + (axes.data() ? 1 : 0) + (axes.tensor() ? 2 : 0);
    }

    /**
     * Returns the group over which a rank's gradient is summed: along the axis data, along the axis
     * tensor, or all ranks.
     *
     * @param context the rank
     * @param parameter the parameter
     * @return the group, or {@code null} if the rank has the whole gradient of what it holds
     */
    @Nullable Communicator of(ParallelContext context, Parameter parameter) {
        boolean cut = parameters.getStrategy(parameter) != null;
        PartialAxes axes = partial.getOrDefault(parameter, usual(parameter));
        Communicator group =
                switch (axes.over(cut, context.getMesh().isOverlaid())) {
                    case DATA -> context.getDataGroup();
                    case TENSOR -> context.getTensorGroup();
                    case ALL -> context.getWorld();
                    case NONE -> null;
                };
        return group == null || group.getSize() == 1 ? null : group;
    }

    /** What was not used with this rank's rows may have been with those of another. */
    private PartialAxes usual(Parameter parameter) {
        return last.getOrDefault(parameter, new PartialAxes(true, false));
    }

    /** Begins the next step. */
    public void clear() {
        partial.clear();
    }
}
