package io.djltp.collective.mpi;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.local.BlockReduction;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Tensor;

import java.util.Arrays;

/**
 * The collective operations, made of what MPI transfers and what is added here.
 *
 * <p>MPI moves the tensors, and they are added here: a large all-reduce is an all-to-all of shares,
 * a sum and an all-gather. That is several times as fast as Open MPI's own non-blocking all-reduce,
 * knows 16-bit floating point numbers, and adds in the order of the ranks: results are those of the
 * {@code local} backend, bit for bit. MPI itself reduces small tensors where the order cannot show.
 */
final class MpiAlgorithms {

    /** What MPI reduces in no more time than it needs to send it. */
    private static final long SMALL_BYTES = 1 << 15;

    /** What a rank had rather receive at once, of all ranks together, than in two steps. */
    private static final long GATHERED_BYTES = 1 << 17;

    private final MpiTransfers transfers;
    private final MpiAgreement agreement;
    private final MpiStaging staging;
    private final BlockReduction reduction;
    private final boolean checked;
    private final int rank;
    private final int size;

    /**
     * Creates the operations of a group.
     *
     * @param transfers the transfers between its ranks
     * @param agreement what the ranks tell each other of a call
     * @param staging memory for what comes from the others
     * @param reduction adds it
     * @param checked whether the ranks have met before each call, to compare what they call
     */
    MpiAlgorithms(
            MpiTransfers transfers,
            MpiAgreement agreement,
            MpiStaging staging,
            BlockReduction reduction,
            boolean checked) {
        this.transfers = transfers;
        this.agreement = agreement;
        this.staging = staging;
        this.reduction = reduction;
        this.checked = checked;
        rank = transfers.getRank();
        size = transfers.getSize();
    }

    void run(CollectiveCall call) {
        switch (call.getCollective()) {
            case ALL_REDUCE:
                allReduce(call);
                break;
            case ALL_GATHER:
                allGather(call);
                break;
            case REDUCE_SCATTER:
                reduceScatter(call);
                break;
            case BROADCAST:
                TensorView tensor = call.getInput();
                transfers
                        .of(call.getDataType())
                        .broadcast(tensor.address(), tensor.size(), call.getRoot());
                break;
            case ALL_TO_ALL:
                allToAll(call);
                break;
            default:
                if (!checked) { // to compare is to wait for all
                    transfers.barrier();
                }
        }
    }

    private void allReduce(CollectiveCall call) {
        Tensor tensor = flat(call.getInput());
        long length = tensor.numel();
        long address = call.getInput().address();
        if (length == 0) {
            return;
        }
        transfers.of(call.getDataType());
        boolean large = transfers.isLarge(length * size);
        if (!large && call.getBytes() <= SMALL_BYTES && isLeftToMpi(call)) {
            transfers.allReduce(address, length, call.getOp());
        } else if (!large && call.getBytes() * size <= GATHERED_BYTES) {
            Tensor all = staging.take(tensor, length * size);
            transfers.allGather(address, address(all), length);
            reduction.reduce(rows(all, length), 0, length, call.getOp(), new Tensor[] {tensor}, 0);
        } else {
            Cut cut = Cut.balanced(length, size);
            long[] shares = cut.getShardLengths();
            ShardRange share = cut.getRange(rank);
            reduce(call, tensor, tensor.narrow(0, share.start(), share.length()), shares);
            transfers.allGather(address, shares);
        }
    }

    /** Returns whether MPI reduces to the same bits, in whatever order it does. */
    private boolean isLeftToMpi(CollectiveCall call) {
        switch (call.getDataType()) {
            case FLOAT16: // MPI has no such types
            case BFLOAT16:
                return false;
            case INT32:
            case INT64:
                return true;
            default: // the largest of a number and NaN is MPI's choice
                return size <= 2 && call.getOp() == ReduceOp.SUM;
        }
    }

    /** Sends every rank its share, and reduces what comes, in the order of the ranks. */
    private void reduce(CollectiveCall call, Tensor input, Tensor output, long[] shares) {
        long length = shares[rank];
        long largest = Arrays.stream(shares).max().orElse(0);
        Tensor all = staging.take(input, length * size);
        long[] received = new long[size];
        Arrays.fill(received, length);
        transfers.allToAll(
                address(input),
                address(all),
                shares,
                received,
                largest,
                Math.max(input.numel(), largest * size));
        reduction.reduce(rows(all, length), 0, length, call.getOp(), new Tensor[] {output}, 0);
    }

    private void reduceScatter(CollectiveCall call) {
        transfers.of(call.getDataType());
        reduce(call, flat(call.getInput()), flat(call.getOutput()), call.getShares());
    }

    /** MPI wants all ranks or none to gather in place; what it would copy is copied here. */
    private void allGather(CollectiveCall call) {
        long[] shares = call.getShares();
        long output = call.getOutput().address();
        long start = Arrays.stream(shares, 0, rank).sum();
        long place = output + start * call.getDataType().getNumOfBytes();
        if (shares[rank] > 0 && call.getInput().address() != place) {
            flat(call.getOutput()).narrow(0, start, shares[rank]).copy_(flat(call.getInput()));
        }
        transfers.of(call.getDataType()).allGather(output, shares);
    }

    private void allToAll(CollectiveCall call) {
        long[] sizes = agreement.exchangeCounts(call);
        transfers
                .of(call.getDataType())
                .allToAll(
                        call.getInput().address(),
                        call.getOutput().address(),
                        call.getShares(),
                        call.getReceivedShares(),
                        sizes[0],
                        sizes[1]);
    }

    private Tensor[] rows(Tensor all, long length) {
        Tensor[] rows = new Tensor[size];
        Arrays.setAll(rows, i -> all.narrow(0, i * length, length));
        return rows;
    }

    private static Tensor flat(TensorView view) {
        return view.tensor().detach().view(-1);
    }

    private static long address(Tensor tensor) {
        return TensorView.of(tensor).address();
    }
}
