/** Contains updates of weights in place, and bags of an embedding. */
package io.djltp.internal.update;
