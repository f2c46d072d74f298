package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.collective.GatheredNumbers;
import io.djltp.collective.Work;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.torch.Autograd;
import io.djltp.torch.Checksum;
import io.djltp.torch.TensorView;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * Parameters that have no gradient but change in the forward pass, such as the running mean of a
 * batch normalization. Where the batch is cut over the ranks each of them sees other numbers; those
 * of rank 0 count. They are what the model holds and saves, and the other ranks get them before
 * anyone can tell the difference: before an evaluation, and, where other processes hold a model of
 * their own, after every step.
 *
 * <p>Which parameters that are is found out by a checksum of all that have no gradient.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RunningBuffers {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final boolean cut; // else all ranks see the same numbers
    private final Set<Parameter> changing = new LinkedHashSet<>();
    private boolean changed;

    /**
     * Creates the buffers of a training.
     *
     * @param ranks the ranks
     * @param parameters what the ranks hold
     */
    public RunningBuffers(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
        cut = ranks.getContext(0).getMesh().isCut(DeviceMesh.DATA);
    }

    /** Notes that a forward pass has been made in which they may have changed. */
    public void change() {
        changed = true;
    }

    /** Gives all ranks what rank 0 has. All processes call it. */
    public void equalize() {
        if (cut && changed) {
            search();
            changed = false;
        }
    }

    /**
     * Does so after a step where it cannot wait until an evaluation.
     *
     * @param search whether others may have begun to change
     */
    public void equalizeAfterStep(boolean search) {
        if (!cut || !ranks.isDistributed()) {
            return;
        }
        if (search) {
            search();
        } else if (!changing.isEmpty()) {
            List<Parameter> known = new ArrayList<>(changing);
            ranks.run(
                    context -> {
                        broadcast(context, known);
                        return null;
                    });
        }
        changed = false;
    }

    private void search() {
        List<Parameter> constant = parameters.getUntrained();
        if (!constant.isEmpty()) {
            changing.addAll(ranks.run(context -> broadcastDifferent(context, constant)).get(0));
        }
    }

    private List<Parameter> broadcastDifferent(ParallelContext context, List<Parameter> constant) {
        long[] own = new long[constant.size()];
        Arrays.setAll(own, i -> Checksum.of(value(context, constant.get(i))));
        NDManager manager = parameters.getStore(context).getManager();
        long[] all =
                GatheredNumbers.of(
                        context.getWorld(), manager, own, "the comparison of statistics");
        Set<Parameter> different = new LinkedHashSet<>();
        for (int i = 0; i < own.length; i++) {
            for (int at = i; at < all.length; at += own.length) {
                if (all[at] != all[i]) {
                    different.add(constant.get(i));
                }
            }
        }
        List<Parameter> list = new ArrayList<>(different);
        broadcast(context, list);
        return list;
    }

    private void broadcast(ParallelContext context, List<Parameter> list) {
        context.getWorld().setIssuer("the statistics of rank 0");
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            List<Work> works = new ArrayList<>();
            for (Parameter parameter : list) {
                TensorView view = TensorView.of(value(context, parameter));
                works.add(context.getWorld().broadcast(view, 0));
            }
            works.forEach(Work::await);
        }
    }

    private NDArray value(ParallelContext context, Parameter parameter) {
        return parameters.getStore(context).getHeld(parameter);
    }
}
