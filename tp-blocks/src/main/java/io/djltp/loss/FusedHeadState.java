package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.head.FusedSoftmaxHead;
import io.djltp.rank.StepParticipant.StateCut;

import java.util.Map;
import java.util.TreeMap;

/**
 * The state of a fused head as arrays, int64. A head that draws classes goes on with that of one
 * that does not, and the other way round: its next step draws as if all before had drawn.
 *
 * <ul>
 *   <li>{@code steps} [1]: the number of updates, by which classes are drawn
 *   <li>{@code plan} [1, 3]: what the roundings of passes follow from, of each place of the tensor
 *       group: {@link FusedSoftmaxHead.State#guarded()}, {@link FusedSoftmaxHead.State#rows()} and
 *       {@link FusedSoftmaxHead.State#evaluationRows()}
 * </ul>
 */
final class FusedHeadState {

    static final Map<String, StateCut> CUTS = Map.of("plan", StateCut.ofPlace());

    private static final String STEPS = "steps";
    private static final String PLAN = "plan";
    private static final int NUMBERS = 3; // of a plan

    private FusedHeadState() {}

    static Map<String, NDArray> get(FusedSoftmaxHead function, NDManager manager) {
        FusedSoftmaxHead.State state = function.getState();
        long[] numbers = {state.guarded() ? 1 : 0, state.rows(), state.evaluationRows()};
        NDArray plan = manager.create(numbers, new Shape(1, NUMBERS));
        return Map.of(PLAN, plan, STEPS, manager.create(new long[] {state.steps()}));
    }

    /** Without a plan, or with those of ranks of another number, a new one is made. */
    static void set(FusedSoftmaxHead function, Shape weight, Map<String, NDArray> state) {
        NDArray steps = state.get(STEPS);
        NDArray plan = state.get(PLAN);
        int known = (steps == null ? 0 : 1) + (plan == null ? 0 : 1);
        if (state.size() != known || steps != null && steps.size() != 1) {
            Map<String, Shape> given = new TreeMap<>();
            state.forEach((name, array) -> given.put(name, array.getShape()));
            throw new IllegalArgumentException(
                    "The state of a head with the weight "
                            + weight
                            + " is \"plan\" and \"steps\", one number, not "
                            + given);
        }
        long[] numbers = plan == null ? new long[NUMBERS] : plan.toLongArray();
        boolean large = false;
        for (int i = 0; i < numbers.length; i += NUMBERS) {
            large |= numbers[i] != 0;
        }
        boolean same = numbers.length == NUMBERS;
        function.setState(
                new FusedSoftmaxHead.State(
                        steps == null ? 0 : steps.toLongArray()[0],
                        large,
                        same ? numbers[1] : 0,
                        same ? numbers[2] : 0));
    }
}
