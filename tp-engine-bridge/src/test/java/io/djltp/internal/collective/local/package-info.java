/** Tests of ranks that share memory. */
package io.djltp.internal.collective.local;
