/** Contains tests of the {@code tcp} backend. */
package io.djltp.internal.collective.tcp;
