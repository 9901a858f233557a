// SPDX-License-Identifier: MIT
// tasks.cc: threads of the C++ library, exceptions inside them and handed from one to another.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// A result that one thread leaves for another: a number, or an exception. (std::future needs
// thread-local variables of libstdc++, which MCJIT does not link.)
struct result {
	std::mutex lock;
	std::condition_variable changed;
	long value = 0;
	std::exception_ptr failure;
	bool is_there = false;

	void run(const std::function<long()> &f)
	{
		long n = 0;
		std::exception_ptr e;
		try {
			n = f();
		} catch (...) {
			e = std::current_exception();
		}
		std::lock_guard<std::mutex> hold(lock);
		value = n;
		failure = e;
		is_there = true;
		changed.notify_all();
	}
	long get()
	{
		std::unique_lock<std::mutex> hold(lock);
		changed.wait(hold, [this] { return is_there; });
		if (failure)
			std::rethrow_exception(failure);
		return value;
	}
};

class pool
{
      public:
	explicit pool(int n)
	{
		for (int i = 0; i < n; i++)
			threads.emplace_back([this] { work(); });
	}
	~pool()
	{
		{
			std::lock_guard<std::mutex> hold(lock);
			is_over = true;
		}
		changed.notify_all();
		for (auto &t : threads)
			t.join();
	}
	std::shared_ptr<result> submit(std::function<long()> f)
	{
		auto r = std::make_shared<result>();
		{
			std::lock_guard<std::mutex> hold(lock);
			tasks.emplace_back([r, f] { r->run(f); });
		}
		changed.notify_one();
		return r;
	}

      private:
	void work()
	{
		for (;;) {
			std::unique_lock<std::mutex> hold(lock);
			changed.wait(hold, [this] { return is_over || !tasks.empty(); });
			if (tasks.empty())
				return;
			auto task = std::move(tasks.front());
			tasks.pop_front();
			hold.unlock();
			task();
		}
	}
	std::mutex lock;
	std::condition_variable changed;
	std::deque<std::function<void()>> tasks;
	std::vector<std::thread> threads;
	bool is_over = false;
};

static std::atomic<int> caught;

static long collatz(long n)
{
	long steps = 0;
	for (; n != 1; steps++)
		n = n % 2 ? 3 * n + 1 : n / 2;
	if (steps > 110)
		throw std::range_error(std::to_string(steps));
	return steps;
}

int main()
{
	long sum = 0, errors = 0;
	{
		pool workers(4);
		std::vector<std::shared_ptr<result>> results;
		for (long n = 1; n <= 300; n++)
			results.push_back(workers.submit([n] {
				try {
					return collatz(n);
				} catch (const std::range_error &) {
					caught++;
					throw;
				}
			}));
		for (auto &r : results) {
			try {
				sum += r->get();
			} catch (const std::exception &e) {
				errors += std::stol(e.what());
			}
		}
	}
	std::cout << sum << ' ' << errors << ' ' << caught << std::endl;
	return 0;
}
